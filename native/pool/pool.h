// The pool: thread cache -> stream cache -> idle memory -> memory from the driver.
//
// Stream order. A block is freed at a point of a stream: all its uses are ordered before that
// point.
//   - The same stream can reuse it at once, from any thread: what it issues next comes after.
//   - Another stream can reuse it only when a fence behind that point has passed, or after waiting
//     for that fence on the GPU.
//   - Its memory is unmapped, or mapped at other addresses for other streams, only when the fence
//     has passed.
//   - A block freed after its stream was destroyed was last used before that: it goes behind the
//     fence that was recorded when the destruction was announced.
//   - A block handed out inside a capture belongs to the graph: only the same stream of the same
//     capture can reuse it while a graph of that capture exists.
//
// Threads. malloc and free take the biased lock of one thread cache, which is uncontended; moving
// blocks out of the cache takes the lock of the stream cache; everything else takes the pool's
// lock. Lock order: the pool's; a stream cache's; that of usage, events, large blocks or the
// registry of listeners; biased locks. A thread that holds a biased lock takes no other lock and
// makes no driver call, except to tell the checker of a simulated GPU. No thread waits for GPU work
// while it holds the pool's lock: that work may end in a host function that frees to the pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/brief_mutex.h"
#include "base/fork.h"
#include "base/resource.h"
#include "driver/driver.h"
#include "pool/config.h"
#include "pool/maintenance/maintenance.h"
#include "pool/parts.h"
#include "pool/report/layout.h"
#include "pool/shortage.h"
#include "pool/threads/crowd.h"
#include "pool/types.h"

namespace vramkit::pool {

class Pool final : public Resource {
  public:
    // The context is the device's primary one, retained by the caller for the life of the pool.
    static std::shared_ptr<Pool> open(std::shared_ptr<Driver> driver, int device, CUcontext context,
                                      const Config& config, Failure& why);
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // 0 and the reason on failure. may_wait: if memory is short, wait on the GPU, then on the host.
    std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, bool may_wait, Failure& why);
    std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, Failure& why) override {
        return malloc(bytes, stream, true, why);
    }
    // The hot path alone: 0 if the thread cache has no block. Calls no driver, and waits for
    // nothing except an NVTX tool.
    std::uint64_t malloc_cached(std::uint64_t bytes, const StreamRef& stream);

    // No stream: that of the allocation. A given size must be the one asked for. The stream comes
    // by reference: a copy of fields that were just written would stall on store forwarding.
    bool free(std::uint64_t address, std::optional<std::uint64_t> bytes,
              const std::optional<StreamRef>& stream, Failure& why) override;
    // free without a stream, for callers that know a live current stream: if that is the stream of
    // the block, its handle is valid and is used.
    bool free_beside(std::uint64_t address, const StreamRef& current, Failure& why);
    // The hot path alone, without a lock or a driver call. bytes 0: not given. slow: nothing was
    // done, and free() must follow, which also reports why a block is refused. yes: the block is
    // free; if the cache is over its bounds, `full` says which bin, and spill() must follow.
    enum class Freed : std::uint8_t { yes, slow };
    struct Full {
        ThreadCache* cache = nullptr;
        ClassIndex index = 0;
        bool given = false;  // the caller gave the stream: its handle is valid
    };
    Freed free_cached(std::uint64_t address, std::uint64_t bytes, const StreamRef* stream,
                      Full& full);
    void spill(const Full& full);

    // Asked for memory when a malloc that may wait is short of it.
    Shortage& shortage() { return shortage_; }

    // An NVTX tool is told of blocks (nvtx.h): every call then waits for the tool.
    bool has_tool() const { return nvtx_ != nullptr; }

    // The block is used on this stream too: when freed, it is held until the work that the stream
    // has at that point is done.
    bool also_used_on(std::uint64_t address, const StreamRef& stream, Failure& why);

    bool preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why);
    // Gives idle memory whose work is done back to the driver; wait: all idle memory. Returns the
    // bytes released.
    std::uint64_t trim(bool wait);
    // Joins all idle memory into one piece. Returns the bytes moved.
    std::uint64_t defragment(Failure& why);
    // One round of what the background thread does (maintenance.h). True: call again soon.
    bool step() { return maintenance_.step(); }

    // A stream is about to be destroyed: a fence is recorded behind its free blocks while it lives.
    void stream_closing(std::uint64_t id, CUstream handle) override;
    // After this malloc, free, preallocate and configure fail with `closed`. False: blocks are
    // still live, and nothing was done.
    bool close(Failure& why) override;
    // The simulated GPU was reset: the pool drops all it had.
    void driver_reset() override;
    bool closed() const override { return closed_.load(std::memory_order_acquire); }
    // True in a child forked from the process of the pool: the child cannot use it.
    bool forked() const { return fork_.forked(); }
    std::uint64_t live_bytes() const override;
    std::uint64_t reserved_bytes() const override;

    Config config() const;
    bool configure(const Config& config, Failure& why);
    Stats stats();
    void reset_stats();
    void reset_peaks();
    Layout layout() const;
    // Which equations of types.h do not hold; empty: all hold. No other thread may use the pool.
    std::string check_invariants() const;
    std::size_t cache_count() const {
        const std::lock_guard guard(lock_);
        return parts_.threads.all().size();
    }

    // Of streams and captures that have not ended: slow paths visit all of these.
    std::size_t stream_cache_count() const {
        const std::lock_guard guard(lock_);
        return parts_.streams.caches().size() + parts_.streams.arenas().size();
    }

    // The thread of a cache ends: the blocks go to the stream cache.
    void cache_ending(ThreadCache* cache);
    bool uses(const DriverTable& call) const override { return &parts_.card.call == &call; }

  private:
    Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, std::uint64_t card_bytes);
    ~Pool();  // by open()'s pointer, and never in a forked child

    // pool.cpp: both ways to free on the hot path.
    template <bool may_lock>
    Freed free_here(std::uint64_t address, std::uint64_t bytes, const StreamRef* stream,
                    Full& full);
    bool free_large(ThreadCache& cache, BlockRef block, std::uint64_t bytes, bool given);
    void record_fence_if_due(ThreadCache& cache);
    // Hot paths, with a biased lock.
    std::uint64_t hand_out(ThreadCache& cache, BlockRef block, std::uint64_t bytes);
    void take_back(ThreadCache& cache, BlockRef block, std::uint64_t bytes);
    void count_free(ThreadCache& cache, std::uint64_t bytes);
    void tell_checker_of_free(const ThreadCache& cache, std::uint64_t address, std::uint64_t bytes,
                              bool held = false);
    // Tells the NVTX tool. Without a biased lock: the tool has locks of its own.
    void tell_tool_of_use(const ThreadCache& cache, BlockRef block, std::uint64_t bytes);
    void tell_tool_of_end(const ThreadCache& cache, BlockRef block);

    // free_slow.cpp: frees that the hot path does not serve.
    std::uint64_t find_live(std::uint64_t address, std::optional<std::uint64_t> given,
                            BlockRef& block, Failure& why);
    bool free_slowly(BlockRef block, std::uint64_t bytes, const std::optional<StreamRef>& stream,
                     Full& full, Failure& why);
    bool free_direct(std::uint64_t address, const std::optional<StreamRef>& stream, Failure& why);
    bool note_graph(std::uint64_t address, const StreamRef& stream, Failure& why);

    // malloc_slow.cpp: where memory comes from when neither cache has a block.
    ThreadCache* cache_of(const StreamRef& stream, Failure& why);
    std::optional<std::uint32_t> number_of(const StreamRef& stream, Failure& why);
    // What malloc looks for: a block of a class, and what the user asked for.
    struct Request {
        ClassIndex index;
        std::uint64_t bytes;
        std::uint64_t asked;
    };
    BlockRef malloc_slow(ThreadCache& cache, const Request& request, bool may_wait, Failure& why);
    BlockRef take_idle(ThreadCache& cache, const Request& request);
    bool found_small(ThreadCache& cache, const Request& request, BlockRef& block);
    DeviceMemory::Made make(ThreadCache& cache, const Request& request, DeviceMemory::Thrift thrift,
                            Failure& why);
    BlockRef fill_cache(ThreadCache& cache, ClassIndex index, BlockRef first);
    BlockRef take_of_others(ThreadCache& cache, const Request& request);
    BlockRef take_after_gpu_wait(const ThreadCache& cache, const Request& request);
    std::uint64_t malloc_direct(ThreadCache& cache, std::uint64_t bytes, bool may_wait,
                                Failure& why);
    std::uint64_t lacking_bytes(std::uint64_t bytes) const;
    bool ask_for_memory(std::unique_lock<BriefMutex>& guard, std::uint64_t bytes);
    bool is_open(Failure& why) const;
    std::string explain(std::uint64_t bytes, const Failure& cause) const;

    // lifetime.cpp
    void put_in_force(const Config& config);
    std::uint64_t give_back(std::unique_lock<BriefMutex>& guard, bool wait);
    void forget_driver();

    // All that the hot paths read of the pool, in its first cache line, which nobody writes but
    // configure() and close().
    const std::uint64_t id_;
    const ForkGuard fork_;
    bool checked_ = false;  // the checker of a simulated GPU listens
    std::atomic<bool> stats_on_{true};
    std::atomic<bool> direct_on_{false};
    std::atomic<bool> closed_{false};
    NvtxMarks* nvtx_ = nullptr;  // null: off, or nobody listens
    const PageMap* page_map_ = nullptr;
    std::atomic<const ClassMap*> class_map_{nullptr};

    alignas(64) Parts parts_;
    alignas(64) mutable BriefMutex lock_;
    std::vector<std::unique_ptr<ClassMap>> class_maps_;  // every one that was ever in force
    Crowd crowd_;                                        // threads in malloc_slow
    std::int64_t hurry_until_ = 0;                       // since they met there
    std::size_t next_other_ = 0;                         // the stream looked at last for its memory
    Shortage shortage_;                                  // with a lock of its own
    Counters before_;                                    // all counters at the last reset
    std::mutex closing_;                                 // of close(); before the lock
    Maintenance maintenance_;                            // last: its thread ends first
};

}  // namespace vramkit::pool
