// Backs chunks with memory of the card, and takes it away: the driver's virtual memory calls.
//
// Each call may fail and leave a chunk half backed. The chunk then says how far it came, and the
// next call continues there.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "swap/chunk.h"

namespace vramkit::swap {

class CardMemory {
  public:
    CardMemory(const DriverTable& call, int device) : call_(call), device_(device) {}
    // Releases handles that the driver refused to take back before; errors are ignored.
    ~CardMemory() { release_again(); }
    CardMemory(const CardMemory&) = delete;
    CardMemory& operator=(const CardMemory&) = delete;

    // Creates, maps and allows access, at all aliases too. The handle is released at once: the
    // mapping keeps the memory, and unmapping alone frees it. Only a chunk of a program's handle
    // keeps it, for further aliases. On failure as much as the driver allows is undone: afterwards
    // uses_card() says whether the chunk has memory.
    bool back(Chunk& chunk, Failure& why);
    // Frees the memory of the chunk. No work may be using it. False: it still has it; is_whole()
    // says whether it is still mapped at every address.
    bool unback(Chunk& chunk, Failure& why);
    // One alias of a chunk that uses the card. False: the alias is as it was.
    bool map(const Chunk& chunk, Alias& alias, Failure& why);
    bool unmap(const Chunk& chunk, Alias& alias, Failure& why);
    bool allow(const Chunk& chunk, const Alias& alias, std::span<const CUmemAccessDesc> access,
               Failure& why);
    // Tries again what the driver refused. Returns the bytes that became free.
    std::uint64_t release_again();

    // Bytes of the card, those of refused releases included.
    std::uint64_t used() const { return used_; }
    // Those of refused releases alone; from any thread.
    std::uint64_t unreleased() const { return unreleased_bytes_.load(std::memory_order_relaxed); }

  private:
    bool release(CUmemGenericAllocationHandle handle, std::uint64_t bytes);

    const DriverTable& call_;
    const int device_;
    std::uint64_t used_ = 0;
    std::vector<std::pair<CUmemGenericAllocationHandle, std::uint64_t>> unreleased_;
    std::atomic<std::uint64_t> unreleased_bytes_{0};
};

}  // namespace vramkit::swap
