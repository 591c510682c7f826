// What the plain resources of device memory share. A class for each supplies the memory; this one
// keeps the table of live blocks, finds the point at which a block is freed, and reports errors.
//
//   direct       every block straight from the driver
//   driver_pool  the driver's own pool, in stream order
//   fixed_pool   one sized slab, best fit
//   arena        one sized slab, superblocks of it for each stream
//
// Safe to use from any thread. They are not fast and not meant to be: the table alone costs a lock
// and a hash lookup.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/fork.h"
#include "base/resource.h"
#include "base/sizes.h"
#include "driver/driver.h"

namespace vramkit::resources {

inline constexpr std::uint64_t kAlignment = kUnit;

class PlainResource : public Resource {
  public:
    // The context is the device's primary one, retained by the caller for the life of this.
    PlainResource(std::shared_ptr<Driver> driver, CUcontext context, std::string name);
    virtual ~PlainResource();

    std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, Failure& why) final;
    bool free(std::uint64_t address, std::optional<std::uint64_t> bytes,
              const std::optional<StreamRef>& stream, Failure& why) final;
    bool close(Failure& why) final;
    // Closes even while blocks are live: nobody can use them any more.
    void end();
    bool closed() const final { return closed_.load(std::memory_order_acquire); }
    // True in a child forked from the process of this resource: the child cannot use it.
    bool forked() const { return fork_.forked(); }

    std::uint64_t live_blocks() const;
    std::uint64_t live_bytes() const final;
    std::uint64_t reserved_bytes() const override { return live_bytes(); }
    // Bytes taken from the driver that no block uses.
    virtual std::uint64_t free_bytes() const { return 0; }

    bool uses(const DriverTable& call) const final { return &call == &driver_->call(); }
    void stream_closing(std::uint64_t id, CUstream handle) final;
    void driver_reset() final;

  protected:
    struct Block {
        std::uint64_t bytes = 0;
        StreamRef stream;
    };

    // What a derived class implements; called with the context current. `bytes` is 1 to the largest
    // request. give(): all use of the block is ordered before the current point of stream `at`.
    virtual std::uint64_t take(std::uint64_t bytes, StreamRef stream, Failure& why) = 0;
    virtual bool give(std::uint64_t address, const Block& block, StreamRef at, Failure& why) = 0;
    // Called once, when no block is live and none will be.
    virtual void give_back_everything() = 0;

    const DriverTable& call() const { return driver_->call(); }
    const Driver& driver() const { return *driver_; }
    const std::string& name() const { return name_; }
    // Later work of one stream waits for what another one holds now. The host does not wait.
    bool wait_on_gpu(CUstream later, CUstream earlier, Failure& why);
    // Whether the stream's handle still means that stream on this thread.
    bool can_name(const StreamRef& stream);
    // `call` failed with this code; out of memory if that is what the code says.
    bool refuse(CUresult code, const char* call, std::uint64_t bytes, Failure& why);
    bool out_of_memory(std::uint64_t bytes, const std::string& what, Failure& why);

  private:
    struct Shard {
        mutable std::mutex lock;
        std::unordered_map<std::uint64_t, Block> blocks;
        std::uint64_t bytes = 0;  // sum of all blocks

        void add(std::uint64_t address, const Block& block) {
            blocks[address] = block;
            bytes += block.bytes;
        }
    };

    Shard& shard_of(std::uint64_t address) { return shards_[address / kAlignment % 16]; }
    bool is_open(Failure& why) const;
    bool has_blocks_of(std::uint64_t stream) const;
    bool has_ended(std::uint64_t id, CUevent& end);
    bool is_usable(const StreamRef& stream, Failure& why);
    bool point_of_free(const Block& block, StreamRef& at, Failure& why);

    const std::uint64_t id_ = next_listener_id();
    const ForkGuard fork_;
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
