// Stream-ordered memory of the program: cuMemAllocAsync and its like, served by a pool of ours on
// each card, which gets its memory by virtual memory calls on the card's engine. The program's own
// pools are the driver's objects; here is what of them is in use.
//
// Nothing here passes the gate: no thread waits for it with a lock of a pool, and closing it waits
// for no thread in a pool. What a pool does on streams, recording events and waiting for them, uses
// no memory of the program.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "pool/pool.h"
#include "share/hook.h"
#include "share/program.h"

namespace vramkit::share {

// A pool of the program, as far as its memory is ours. The fields below `ours` change with the lock
// of what holds them.
struct ProgramPool {
    ProgramPool(CUmemoryPool handle_, CUdevice device_, bool ours_, std::uint64_t most_)
        : handle(handle_), device(device_), most(most_), ours(ours_) {}

    const CUmemoryPool handle;
    const CUdevice device;
    const std::uint64_t most;  // bytes; 0: no limit of its own
    std::atomic<bool> ours;    // false: the driver serves it, and its memory stays on the card
    std::uint64_t used = 0, used_high = 0, reserved_high = 0;
    std::uint64_t threshold = 0;  // reserved bytes that the program wants to keep
};

using ProgramPoolRef = std::shared_ptr<ProgramPool>;

// Never used in a forked child.
class StreamOrdered {
  public:
    // Never destroyed.
    static StreamOrdered& get();

    // Of the stream of a call. No card: it cannot be told, or the driver refused.
    struct Place {
        Card* card = nullptr;
        CUcontext context = nullptr;   // of the stream
        pool::Pool* engine = nullptr;  // null: the driver serves the stream
        StreamRef stream;
        bool captured = false;
    };
    Place place_of(const CallId& call, CUstream stream);

    // Of the program: made by it, or of a device. Null: one that we do not know.
    ProgramPoolRef pool(CUmemoryPool handle);
    ProgramPoolRef current_pool(CUdevice device);
    void pool_made(CUmemoryPool handle, const CUmemPoolProps& properties);
    void pool_destroyed(CUmemoryPool handle);
    void pool_chosen(CUdevice device, CUmemoryPool handle);

    CUresult allocate(const Place& place, const ProgramPoolRef& from, std::uint64_t bytes,
                      CUdeviceptr* pointer);
    struct Block {
        std::uint64_t begin, bytes;
        CUdevice device;
        CUmemoryPool pool;
    };
    // The block around an address.
    std::optional<Block> find(std::uint64_t address) const;
    // At the current point of a stream. None: no block of ours begins there.
    std::optional<CUresult> free(std::uint64_t address, const StreamRef& stream);
    // By cuMemFree, after all that the program has issued.
    std::optional<CUresult> free_now(std::uint64_t address);

    struct Bytes {
        std::uint64_t used, used_high, reserved, reserved_high;
    };
    Bytes bytes_of(ProgramPool& pool);
    // The highest values become the current ones.
    void reset_high(ProgramPool& pool, CUmemPool_attribute which);
    void keep(ProgramPool& pool, std::uint64_t bytes);
    // Unused memory, down to so many bytes where the pool has as much.
    void trim(ProgramPool& pool, std::uint64_t bytes);

    // Gives unused memory of the card back, for other requests. False: there was none.
    bool give_back(Card& card);
    // After the program has waited for work: what was unused for a while goes back, as the driver's
    // pools do at such times. Seldom more than a look at the clock.
    void after_wait();
    void stream_ending(CUstream stream);
    // All blocks of the device are free; its work is done.
    void primary_ended(CUdevice device);
    // Nothing of the device survives.
    void device_resetting(CUdevice device);

  private:
    struct Used {
        std::uint64_t bytes;
        ProgramPoolRef pool;
    };
    using Blocks = std::map<std::uint64_t, Used>;

    StreamOrdered();
    // Nanoseconds, by the clock of the pools: that of the simulated GPU if there is one.
    std::int64_t now() const;
    std::shared_ptr<pool::Pool> open(Card& card);
    pool::Pool* engine_of(CUdevice device) const;
    pool::Pool* opened(Card& card);
    ProgramPoolRef default_pool(CUdevice device);
    Blocks::node_type take(std::uint64_t address);
    void put_back(Blocks::node_type block);
    // With the lock.
    void count(ProgramPool& pool, std::int64_t bytes);

    const std::shared_ptr<Driver> driver_;  // whose virtual memory calls are the engine's
    double (*const clock_)();
    std::mutex opening_;
    std::array<std::atomic<pool::Pool*>, kMostCards> engines_{};
    std::atomic<bool> any_{false};  // of them, at any time
    std::atomic<std::int64_t> next_step_{0};
    std::atomic<bool> told_{false};  // that another context's streams are the driver's
    // Of what follows. Nobody makes a call with it.
    mutable std::mutex lock_;
    Blocks blocks_;
    std::unordered_map<CUmemoryPool, ProgramPoolRef> pools_;
    std::array<ProgramPoolRef, kMostCards> defaults_, current_;
};

}  // namespace vramkit::share
