// Device memory in stream order: the interface of every allocator here.
#pragma once

#include <cstdint>
#include <optional>

#include "base/failure.h"
#include "base/listeners.h"
#include "base/stream_ref.h"

namespace vramkit {

// 1. malloc hands out a block for work that is issued to the stream from then on. On failure it
//    returns 0 and the reason, and changes nothing.
// 2. free takes it back at the current point of a stream (none given: that of the allocation). All
//    use of the block must be ordered before that point.
// 3. Memory is reused while earlier work on it may still run only where the stream's own order, or
//    a wait on the GPU, keeps the two apart.
// 4. A given size must be the one asked for. A pointer that is no block in use is refused, and
//    nothing changes.
// 5. Any thread may call anything at any time. Graph captures survive every call.
// 6. close gives everything back, and fails while blocks are in use.
class Resource : public Listener {
  public:
    virtual std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, Failure& why) = 0;
    virtual bool free(std::uint64_t address, std::optional<std::uint64_t> bytes,
                      const std::optional<StreamRef>& stream, Failure& why) = 0;
    virtual bool close(Failure& why) = 0;
    virtual bool closed() const = 0;
    // Bytes asked for and not freed; bytes taken from the driver.
    virtual std::uint64_t live_bytes() const = 0;
    virtual std::uint64_t reserved_bytes() const = 0;

  protected:
    ~Resource() = default;
};

}  // namespace vramkit
