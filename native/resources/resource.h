// Plain resources of device memory: what they share. One class each gives the memory; this one
// keeps the account of live blocks, finds the point at which a block is freed, and says no.
//
//   direct       every block from the driver, and back at once
//   driver_pool  the driver's own pool, in stream order
//   fixed_pool   one sized slab, best fit
//   arena        one sized slab, superblocks of it for each stream
//
// Safe to use from any thread. They are not fast and not meant to be: the account alone costs a
// lock and a hash table.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "driver/driver.h"
#include "pool/types.h"

namespace vramkit::resources {

using pool::Failure;
using pool::StreamRef;

inline constexpr std::uint64_t kAlignment = 256;

inline std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

class Resource {
  public:
    // The context is the device's primary one, retained by the caller for the life of this.
    Resource(std::shared_ptr<Driver> driver, CUcontext context, std::string name);
    virtual ~Resource();
    Resource(const Resource&) = delete;
    Resource& operator=(const Resource&) = delete;

    // 0 and the reason on failure.
    std::uint64_t malloc(std::uint64_t bytes, StreamRef stream, Failure& why);
    // No stream: that of the allocation. A given size must be the one asked for.
    bool free(std::uint64_t address, std::optional<std::uint64_t> bytes,
              std::optional<StreamRef> stream, Failure& why);
    // Gives everything back. False: blocks are live, and nothing was done.
    bool close(Failure& why);
    // The same whatever is live: nobody can reach this any more.
    void end();
    bool closed() const { return closed_.load(std::memory_order_acquire); }

    std::uint64_t live_blocks() const;
    std::uint64_t live_bytes() const;
    // Taken from the driver now.
    virtual std::uint64_t reserved_bytes() const { return live_bytes(); }
    // Of those, what serves no block.
    virtual std::uint64_t free_bytes() const { return 0; }

    // A stream of the driver is about to be destroyed: every resource is told.
    static void tell_of_closing_stream(const DriverTable& call, std::uint64_t id);
    // The simulated GPU was reset, and forgot all there was.
    static void tell_of_reset(const DriverTable& call);

  protected:
    struct Block {
        std::uint64_t bytes = 0;
        StreamRef stream;
    };

    // What a resource is made of; called with its context current. Bytes are 1 to the largest
    // request. give(): all use of the block is ordered before this point of stream `at`.
    virtual std::uint64_t take(std::uint64_t bytes, StreamRef stream, Failure& why) = 0;
    virtual bool give(std::uint64_t address, const Block& block, StreamRef at, Failure& why) = 0;
    // No block is live, and none will be.
    virtual void give_back_everything() = 0;

    const DriverTable& call() const { return driver_->call(); }
    const Driver& driver() const { return *driver_; }
    const std::string& name() const { return name_; }
    // Later work of one stream waits for what another one holds now. The host does not wait.
    bool wait_on_gpu(CUstream later, CUstream earlier, Failure& why);
    // Whether the stream can be named from this thread, now.
    bool can_name(const StreamRef& stream);
    // `call` refused: out of memory where the code says so.
    bool refuse(CUresult code, const char* call, std::uint64_t bytes, Failure& why);
    bool out_of_memory(std::uint64_t bytes, const std::string& what, Failure& why);

  private:
    struct Shard {
        mutable std::mutex lock;
        std::unordered_map<std::uint64_t, Block> blocks;
    };

    Shard& shard_of(std::uint64_t address) { return shards_[address / kAlignment % 16]; }
    bool has_ended(std::uint64_t id, CUevent& end);
    bool is_usable(const StreamRef& stream, Failure& why);
    bool place_of_free(const Block& block, StreamRef& at, Failure& why);
    void stream_closing(std::uint64_t id);
    void forget();

    const std::shared_ptr<Driver> driver_;
    const CUcontext context_;
    const std::string name_;
    std::atomic<bool> closed_{false};
    std::array<Shard, 16> shards_;
    // Streams that ended with blocks live, and the event behind their last work.
    std::atomic<bool> any_ended_{false};
    std::mutex ended_lock_;
    std::unordered_map<std::uint64_t, CUevent> ended_;
};

}  // namespace vramkit::resources
