// The pool: thread cache -> global level -> fresh blocks -> memory from the driver.
//
// Stream order. A block is freed at a point of a stream: all its uses are ordered before that
// point.
//   - The same stream may have it again at once, from any thread: what it issues next comes after.
//   - Another stream may have it only when the mark of its batch has passed, or after waiting for
//   that
//     mark on the GPU.
//   - Its memory is unmapped only when the mark has passed.
//
// Threads. malloc and free take the owner word of one cache, which nobody contends. Whatever leaves
// the cache goes through one lock. Lock order: the pool's lock, then owner words; a thread that
// holds its owner word never takes the lock.
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
    // The hot path alone. The block is free; where the cache is over its bounds, `full` says which
    // bin and spill() must follow.
    struct Full {
        Cache* cache = nullptr;
        ClassIndex index = 0;
    };
    bool free_cached(std::uint64_t address, std::optional<std::uint64_t> bytes,
                     std::optional<StreamRef> stream, Failure& why, Full& full);
    void spill(const Full& full);

    bool preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why);
    // Gives idle memory whose work is done back to the driver; wait: all idle memory.
    // The bytes that went.
    std::uint64_t trim(bool wait);
    // A stream is about to be destroyed: its cached blocks get their mark while it lives.
    void stream_closing(std::uint64_t id);
    // After this every call fails with `closed`. False: blocks are still live, and nothing was
    // done.
    bool close(Failure& why);
    // The driver has forgotten all there was (a reset of the simulated GPU): so does the pool.
    void abandon();
    bool closed() const { return closed_.load(std::memory_order_acquire); }

    Config config() const;
    bool configure(const Config& config, Failure& why);
    Stats stats();
    void reset_stats();
    // What does not hold of the equations of types.h; empty when all is well. Nothing else may run.
    std::string check_invariants();

    // The thread of a cache ends: its blocks go to the global level.
    void cache_ending(Cache* cache);
    bool uses(const DriverTable& call) const { return &call_ == &call; }

  private:
    struct Batch {
        std::uint32_t stream = 0;
        std::shared_ptr<Mark> mark;  // null: passed
        std::vector<BlockRef> blocks;
    };
    struct Bin {
        std::deque<Batch> batches;
        std::vector<BlockRef> fresh;
        std::uint64_t waiting = 0;  // blocks in batches
    };

    Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, const Config& config);

    Cache* cache_of(StreamRef stream, Failure& why);
    Cache* make_cache(StreamRef stream, Failure& why);
    std::uint64_t hand_out(Cache& cache, BlockRef block, std::uint64_t bytes, StreamRef stream,
                           bool hit);
    StreamRef stream_of(const Block& block);
    std::uint64_t malloc_slow(Cache& cache, ClassIndex index, std::uint64_t bytes, StreamRef stream,
                              bool may_wait, Failure& why);

    // With the lock held.
    BlockRef take_global(Cache& cache, ClassIndex index, StreamRef stream);
    bool grow(ClassIndex index, std::uint64_t blocks, Failure& why);
    BlockRef take_after_gpu_wait(ClassIndex index, StreamRef stream);
    BlockRef take_any(Cache& cache, ClassIndex index, Bin& bin, std::size_t batch);
    BlockRef take_fresh(Cache& cache, ClassIndex index);
    void reclaim_caches();
    std::shared_ptr<Mark> mark(const StreamRef& stream);
    // Moves the oldest blocks of a bin, or all of a cache, to the global level.
    void spill(Cache& cache, ClassIndex index, std::size_t blocks,
               const std::shared_ptr<Mark>& mark);
    void spill_all(Cache& cache);
    std::uint64_t release_idle(bool wait);
    std::uint64_t live_bytes();
    Counters add_up();
    std::string explain(std::uint64_t bytes, const Failure& cause);
    void report_live(Cache& cache);

    const std::uint64_t
        id_;  // never used again, so that a thread's memory of a pool cannot mislead
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
    bool abandoned_ = false;
    std::atomic<std::int64_t> live_bytes_{0};
    std::atomic<std::int64_t> peak_bytes_{0};

    mutable std::mutex lock_;
    Config config_;
    std::unique_ptr<Range> range_;
    std::unordered_map<Chunk*, std::unique_ptr<Chunk>> chunks_;
    std::vector<Bin> bins_;
    std::vector<StreamRef> streams_;                                   // by number
    std::unordered_map<std::uint64_t, std::uint32_t> stream_numbers_;  // by id
    std::vector<std::unique_ptr<Cache>> caches_;
    std::uint64_t reserved_ = 0;
    std::uint64_t peak_reserved_ = 0;
    Stats slow_;       // the counters that only slow paths touch
    Counters ended_;   // of caches whose threads are gone
    Counters before_;  // all counters at the last reset
};

}  // namespace vramkit::pool
