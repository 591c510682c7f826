// The pool: thread cache -> global level -> fresh blocks -> memory from the driver.
//
// Stream order. A block is freed at a point of a stream: all its uses are ordered before that
// point.
//   - The same stream may have it again at once, from any thread: what it issues next comes after.
//   - Another stream may have it only when the mark of its batch has passed, or after waiting for
//     that mark on the GPU.
//   - Its memory is unmapped only when the mark has passed.
//   - A block freed after its stream was destroyed was last used before that: it goes behind the
//     mark that was recorded when the stream was about to go.
//
// Threads. malloc and free take the owner word of one cache, which nobody contends. Whatever leaves
// the cache goes through one lock. Lock order: the registry's lock, the pool's lock, then owner
// words; a thread that holds its owner word takes no lock and makes no driver call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "driver/driver.h"
#include "pool/config.h"
#include "pool/marks.h"
#include "pool/range.h"
#include "pool/types.h"

namespace vramkit::pool {

class Pool {
  public:
    // The context is the device's primary one, retained by the caller for the life of the pool.
    static std::shared_ptr<Pool> open(std::shared_ptr<Driver> driver, int device, CUcontext context,
                                      const Config& config, Failure& why);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // 0 and the reason on failure. may_wait: short of memory, wait on the GPU and then on the host.
    std::uint64_t malloc(std::uint64_t bytes, StreamRef stream, bool may_wait, Failure& why);
    // The hot path alone: 0 where the thread's cache cannot serve. Never waits, never calls the
    // driver.
    std::uint64_t malloc_cached(std::uint64_t bytes, StreamRef stream);

    // No stream: that of the allocation. A given size must be the one asked for.
    bool free(std::uint64_t address, std::optional<std::uint64_t> bytes,
              std::optional<StreamRef> stream, Failure& why);
    // The hot path alone, without lock and driver call. no_cache: the thread has none of that
    // stream yet, nothing was done, and free() must follow. yes: the block is free; where the cache
    // is over its bounds, `full` says which bin and spill() must follow.
    enum class Freed : std::uint8_t { yes, refused, no_cache };
    struct Full {
        Cache* cache = nullptr;
        ClassIndex index = 0;
    };
    Freed free_cached(std::uint64_t address, std::optional<std::uint64_t> bytes,
                      std::optional<StreamRef> stream, Failure& why, Full& full);
    void spill(const Full& full);

    bool preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why);
    // Gives idle memory whose work is done back to the driver; wait: all idle memory.
    // The bytes that went.
    std::uint64_t trim(bool wait);
    // A stream is about to be destroyed: its cached blocks get their mark while it lives.
    void stream_closing(std::uint64_t id);
    // After this malloc, free, preallocate and configure fail with `closed`. False: blocks are
    // still live, and nothing was done.
    bool close(Failure& why);
    // The driver has forgotten all there was (a reset of the simulated GPU): so does the pool.
    void abandon();
    bool closed() const { return closed_.load(std::memory_order_acquire); }
    // True in a child that was forked off the process of the pool: it may do nothing with it.
    bool forked() const;

    Config config() const;
    bool configure(const Config& config, Failure& why);
    Stats stats();
    void reset_stats();
    // What does not hold of the equations of types.h; empty when all is well. Nothing else may run.
    std::string check_invariants();
    std::size_t cache_count() const {
        const std::lock_guard guard(lock_);
        return caches_.size();
    }

    // The thread of a cache ends: its blocks go to the global level.
    void cache_ending(Cache* cache);
    bool uses(const DriverTable& call) const { return &call_ == &call; }

  private:
    struct Batch {
        std::uint32_t stream = 0;
        bool marked = true;          // else its mark is put off: see mark_now()
        std::shared_ptr<Mark> mark;  // null in a marked batch: passed
        std::vector<BlockRef> blocks;
    };
    struct Bin {
        std::deque<Batch> batches;
        std::vector<BlockRef> fresh;
        std::uint64_t waiting = 0;  // blocks in batches
    };
    struct KnownStream {
        StreamRef ref;
        bool ended = false;
        std::shared_ptr<Mark> end;  // of an ended one: behind its last work; null: passed
    };
    // Blocks of one class on their way from a cache to the global level.
    struct Leaving {
        ClassIndex index = 0;
        std::vector<BlockRef> blocks;
    };

    Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, const Config& config);

    // The calling thread's cache, made where there is none: by its stream, or by the number of one
    // that the pool knows.
    Cache* cache_of(StreamRef stream, Failure& why);
    Cache* cache_of(std::uint32_t number, Failure& why);
    // With an owner word.
    std::uint64_t hand_out(Cache& cache, BlockRef block, std::uint64_t bytes, StreamRef stream,
                           bool hit);
    std::uint64_t malloc_slow(Cache& cache, ClassIndex index, std::uint64_t bytes, StreamRef stream,
                              bool may_wait, Failure& why);

    // With the lock held.
    std::optional<std::uint32_t> number_of(StreamRef stream, Failure& why);
    Cache* make_cache(std::uint32_t number);
    void retire(Cache* cache);
    BlockRef take_global(Cache& cache, ClassIndex index, std::size_t questions);
    bool grow(ClassIndex index, std::uint64_t blocks, Failure& why);
    BlockRef take_after_gpu_wait(ClassIndex index, StreamRef stream);
    BlockRef take_any(Cache& cache, ClassIndex index, Bin& bin, std::size_t batch);
    BlockRef take_fresh(Cache& cache, ClassIndex index);
    // Blocks that the cache has room for beside the one that is handed out.
    std::size_t room_for(const Cache& cache, ClassIndex index) const;
    void reclaim_caches();
    // Behind all work that the stream holds now; of a destroyed one, behind all it ever held.
    std::shared_ptr<Mark> mark(std::uint32_t number);
    // From a cache to the global level: out of it under its owner word, then behind a mark.
    void take_out(Cache& cache, ClassIndex index, std::size_t blocks,
                  std::vector<Leaving>& leaving);
    void take_out_all(Cache& cache, std::vector<Leaving>& leaving);
    void shelve(std::uint32_t number, std::vector<Leaving>& leaving);
    void shelve(std::uint32_t number, std::vector<Leaving>& leaving, bool marked,
                const std::shared_ptr<Mark>& behind);
    // Somebody else than its stream wants the batch: now it needs its mark.
    void mark_now(Batch& batch);
    bool passed(Batch& batch);
    void wait_for_marks();
    std::uint64_t release_idle();
    void forget_driver();
    std::uint64_t live_bytes();
    Counters add_up();
    std::string explain(std::uint64_t bytes, const Failure& cause);
    void report_live(Cache& cache);
    void tell_checker_of_free(const Cache& cache, std::uint64_t address, std::uint64_t bytes);
    bool names_its_stream(const StreamRef& stream) const;

    const std::uint64_t id_;
    std::shared_ptr<Driver> driver_;
    const DriverTable& call_;
    const int device_;
    const CUcontext context_;
    const int fork_count_;
    void (*block_allocated_)(std::uint64_t, std::size_t, void*) = nullptr;  // the checker's, if any
    void (*block_freed_)(std::uint64_t, std::size_t, void*) = nullptr;

    // Read on the hot path, changed by configure().
    std::atomic<std::uint64_t> cache_blocks_;
    std::atomic<std::uint64_t> cache_bytes_;
    std::atomic<Classes> classes_;
    std::atomic<bool> stats_on_;
    std::atomic<bool> closed_{false};
    bool abandoned_ = false;  // under the lock
    std::uint64_t card_bytes_ = 0;
    std::atomic<std::int64_t> live_bytes_{0};
    std::atomic<std::int64_t> peak_bytes_{0};

    mutable std::mutex lock_;
    Config config_;
    Events events_;  // outlives the marks below
    std::unique_ptr<Range> range_;
    std::unordered_map<Chunk*, std::unique_ptr<Chunk>> chunks_;
    std::vector<Bin> bins_;
    std::vector<KnownStream> streams_;                                 // by number
    std::unordered_map<std::uint64_t, std::uint32_t> stream_numbers_;  // by id; not of ended ones
    std::vector<std::uint32_t> ending_;                                // ended, with a mark
    std::vector<std::unique_ptr<Cache>> caches_;
    std::uint64_t reserved_ = 0;
    std::uint64_t peak_reserved_ = 0;
    Stats slow_;       // the counters that only slow paths touch
    Counters ended_;   // of caches whose threads are gone
    Counters before_;  // all counters at the last reset
};

}  // namespace vramkit::pool
