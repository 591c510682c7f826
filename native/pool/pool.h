// The pool: thread cache -> stream cache -> idle memory -> memory from the driver.
//
// Stream order. A block is freed at a point of a stream: all its uses are ordered before that
// point.
//   - The same stream may have it again at once, from any thread: what it issues next comes after.
//   - Another stream may have it only when a fence behind that point has passed, or after waiting
//     for that fence on the GPU.
//   - Its memory is unmapped, or mapped at other addresses for others, only when the fence has
//     passed.
//   - A block freed after its stream was destroyed was last used before that: it goes behind the
//     fence that was recorded when the stream was about to go.
//   - What is handed out inside a capture is the graph's: nobody but the same stream of the same
//     capture gets it while a graph of it is left.
//
// Threads. malloc and free take the biased lock of one thread cache, which nobody contends; what
// leaves the cache takes the lock of its stream's cache; all else takes the pool's lock. Order: the
// pool's, a stream cache's, that of usage, events, large blocks or the registry of listeners,
// biased locks. A thread that holds a biased lock takes no other lock and makes no driver call, but
// for what the checker of a simulated GPU is told. Nobody waits for work of the GPU with the pool's
// lock: a host function that is waited for may free to the pool.
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
#include "pool/types.h"

namespace vramkit::pool {

class Pool final : public Resource {
  public:
    // The context is the device's primary one, retained by the caller for the life of the pool.
    static std::shared_ptr<Pool> open(std::shared_ptr<Driver> driver, int device, CUcontext context,
                                      const Config& config, Failure& why);
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // 0 and the reason on failure. may_wait: short of memory, wait on the GPU and then on the host.
    std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, bool may_wait, Failure& why);
    std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, Failure& why) override {
        return malloc(bytes, stream, true, why);
    }
    // The hot path alone: 0 where the thread's cache cannot serve. Never waits but for a tool,
    // never calls the driver.
    std::uint64_t malloc_cached(std::uint64_t bytes, const StreamRef& stream);

    // No stream: that of the allocation. A given size must be the one asked for. The stream comes
    // by reference: to copy what was just written in parts makes the processor wait for the stores.
    bool free(std::uint64_t address, std::optional<std::uint64_t> bytes,
              const std::optional<StreamRef>& stream, Failure& why) override;
    // Without a stream, for callers that know which one is current and lives: where it is that of
    // the block, its handle is good.
    bool free_beside(std::uint64_t address, const StreamRef& current, Failure& why);
    // The hot path alone, without lock and driver call. bytes 0: not given. slow: nothing was done,
    // and free() must follow, which also says why a block is refused. yes: the block is free; where
    // the cache is over its bounds, `full` says which bin and spill() must follow.
    enum class Freed : std::uint8_t { yes, slow };
    struct Full {
        ThreadCache* cache = nullptr;
        ClassIndex index = 0;
        bool given = false;  // the stream was: its handle is good
    };
    Freed free_cached(std::uint64_t address, std::uint64_t bytes, const StreamRef* stream,
                      Full& full);
    void spill(const Full& full);

    // Every call waits for a tool that is told of blocks (nvtx.h), and whatever that waits for.
    bool has_tool() const { return nvtx_ != nullptr; }

    // The block is used on this stream too: freed, it is held until the stream has got past that
    // point.
    bool also_used_on(std::uint64_t address, const StreamRef& stream, Failure& why);

    bool preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why);
    // Gives idle memory whose work is done back to the driver; wait: all idle memory.
    // The bytes that went.
    std::uint64_t trim(bool wait);
    // Makes one piece of all idle memory. The bytes that were moved for it.
    std::uint64_t defragment(Failure& why);
    // What the background thread does, once (maintenance.h). True: more is to do soon.
    bool step() { return maintenance_.step(); }

    // A stream is about to be destroyed: its free blocks get their fence while it lives.
    void stream_closing(std::uint64_t id, CUstream handle) override;
    // After this malloc, free, preallocate and configure fail with `closed`. False: blocks are
    // still live, and nothing was done.
    bool close(Failure& why) override;
    // The driver has forgotten all there was (a reset of the simulated GPU): so does the pool.
    void driver_reset() override;
    bool closed() const override { return closed_.load(std::memory_order_acquire); }
    // True in a child that was forked off the process of the pool: it may do nothing with it.
    bool forked() const { return fork_.forked(); }
    std::uint64_t live_bytes() const override;
    std::uint64_t reserved_bytes() const override;

    Config config() const;
    bool configure(const Config& config, Failure& why);
    Stats stats();
    void reset_stats();
    Layout layout() const;
    // What does not hold of the equations of types.h; empty when all is well. Nothing else may run.
    std::string check_invariants() const;
    std::size_t cache_count() const {
        const std::lock_guard guard(lock_);
        return parts_.threads.all().size();
    }

    // Of streams and captures that are not over: these are looked at on slow paths.
    std::size_t stream_cache_count() const {
        const std::lock_guard guard(lock_);
        return parts_.streams.caches().size() + parts_.streams.arenas().size();
    }

    // The thread of a cache ends: its blocks go to their stream cache.
    void cache_ending(ThreadCache* cache);
    bool uses(const DriverTable& call) const override { return &parts_.card.call == &call; }

  private:
    Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, std::uint64_t card_bytes);
    ~Pool();  // by open()'s pointer, and never in a forked child

    // pool.cpp: hot paths, with a biased lock.
    std::uint64_t hand_out(ThreadCache& cache, BlockRef block, std::uint64_t bytes,
                           ClassIndex index);
    void take_back(ThreadCache& cache, BlockRef block, std::uint64_t bytes);
    void count_free(ThreadCache& cache, std::uint64_t bytes);
    void tell_checker_of_free(const ThreadCache& cache, std::uint64_t address, std::uint64_t bytes,
                              bool held = false);
    // What a tool is told, without a biased lock: its locks are its own.
    void tell_tool_of_use(const ThreadCache& cache, BlockRef block, std::uint64_t bytes);
    void tell_tool_of_end(const ThreadCache& cache, BlockRef block);

    // free_slow.cpp: frees with all that can come in between.
    std::uint64_t find_live(std::uint64_t address, std::optional<std::uint64_t> given,
                            BlockRef& block, Failure& why);
    bool free_slowly(BlockRef block, std::uint64_t bytes, const std::optional<StreamRef>& stream,
                     Full& full, Failure& why);
    bool free_direct(std::uint64_t address, const std::optional<StreamRef>& stream, Failure& why);
    bool note_graph(std::uint64_t address, const StreamRef& stream, Failure& why);

    // malloc_slow.cpp: where memory comes from when neither cache has it.
    ThreadCache* cache_of(const StreamRef& stream, Failure& why);
    std::optional<std::uint32_t> number_of(const StreamRef& stream, Failure& why);
    BlockRef split_or_join(const ThreadCache& cache, ClassIndex index, std::uint64_t cut_up_to);
    BlockRef malloc_slow(ThreadCache& cache, ClassIndex index, std::uint64_t bytes, bool may_wait,
                         Failure& why);
    BlockRef take_idle(ThreadCache& cache, ClassIndex index);
    BlockRef fill_cache(ThreadCache& cache, ClassIndex index, BlockRef first);
    BlockRef take_of_others(ThreadCache& cache, ClassIndex index);
    BlockRef take_after_gpu_wait(const ThreadCache& cache, ClassIndex index);
    std::uint64_t malloc_direct(ThreadCache& cache, std::uint64_t bytes, bool may_wait,
                                Failure& why);
    bool is_open(Failure& why) const;
    std::string explain(std::uint64_t bytes, const Failure& cause) const;

    // lifetime.cpp
    void put_in_force(const Config& config);
    std::uint64_t give_back(std::unique_lock<BriefMutex>& guard, bool wait);
    void forget_driver();

    const std::uint64_t id_;
    const ForkGuard fork_;
    Parts parts_;
    NvtxMarks* nvtx_ = nullptr;  // null: off, or nobody listens
    const PageMap* page_map_ = nullptr;

    // Read on the hot path, changed by configure().
    alignas(64) std::atomic<const ClassMap*> class_map_{nullptr};
    std::atomic<bool> stats_on_{true};
    std::atomic<bool> direct_on_{false};
    std::atomic<bool> closed_{false};

    alignas(64) mutable BriefMutex lock_;
    std::vector<std::unique_ptr<ClassMap>> class_maps_;  // every one that was ever in force
    Counters before_;                                    // all counters at the last reset
    Maintenance maintenance_;                            // last: its thread ends first
};

}  // namespace vramkit::pool
