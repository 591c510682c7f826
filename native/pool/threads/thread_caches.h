// The thread caches of one pool: who has one, how much it may keep, and the way of blocks between
// them and the caches of their streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "pool/config.h"
#include "pool/device_context.h"
#include "pool/streams/streams.h"
#include "pool/threads/usage.h"
#include "pool/types.h"

namespace vramkit::pool {

// With the pool's lock, in its context, where nothing else is said.
class ThreadCaches {
  public:
    ThreadCaches(std::uint64_t pool, const DeviceContext& card, Streams& streams)
        : pool_(pool), card_(card), streams_(streams) {}
    ThreadCaches(const ThreadCaches&) = delete;
    ThreadCaches& operator=(const ThreadCaches&) = delete;

    // Of the calling thread, made where it has none.
    ThreadCache& of(std::uint32_t number);
    // The calling thread's caches of streams that have ended go. One that works with ever new
    // streams keeps caches only of those that live.
    void retire_ended();
    // The thread of a cache ends.
    void retire(ThreadCache* cache);
    void configure(const Config& config);

    // The stream's own blocks, at once. Takes a few: what is not handed out now goes into the
    // cache. With neither lock.
    BlockRef refill(ThreadCache& cache, ClassIndex index);
    // Blocks that the cache may take beside the one that is asked for. With its biased lock.
    std::size_t room_for(const ThreadCache& cache, ClassIndex index,
                         bool from_stream_cache = false) const;
    // Moves what is too much to the stream cache, whose lock is held; `full` is the class that
    // grew. True: the stream cache has more of a class than it should.
    bool evict_excess(ThreadCache& cache, ClassIndex full);
    std::size_t most_in_stream_cache() const {
        return stream_cache_blocks_.load(std::memory_order_relaxed);
    }

    // All blocks of a cache to that of their stream; to idle memory where its work is long done.
    // end: what is freed here later leaves at once.
    void drain(ThreadCache& cache, bool end = false);
    void drain_all();
    // What nobody needed since the last time, to the caches of their streams.
    void decay();
    // Nothing new comes from the stream; caches of it pass on what is still freed.
    void end_stream(std::uint32_t number);
    // Graphs that are gone end their captures; ended streams whose work is done are dropped.
    void drop_ended();

    // Of the calling thread's last request or of all since the last reset_largest().
    ClassIndex largest_asked_for() const;
    ClassIndex reset_largest();
    Counters counters() const;
    // By stream, as far as threads that are there tell.
    std::pair<std::uint64_t, std::int64_t> stream_with_most_in_use() const;

    using List = std::vector<std::unique_ptr<ThreadCache>>;
    const List& all() const { return caches_; }
    // Nobody gets an address of before.
    void drop_blocks();
    void clear() { caches_.clear(); }

    alignas(64) Usage usage;  // written now and then: not on a line that all read

  private:
    ThreadCache* make(std::uint32_t number);
    void set_bounds(ThreadCache& cache, std::size_t caches_of_thread) const;
    template <class Move>
    void evict_bytes(ThreadCache& cache, std::uint64_t most, Move move);

    const std::uint64_t pool_;
    const DeviceContext& card_;
    Streams& streams_;
    std::atomic<std::uint64_t> batch_{0};
    std::atomic<std::uint64_t> stream_cache_blocks_{0};
    std::uint64_t most_blocks_ = 0, most_bytes_ = 0, most_thread_bytes_ = 0;
    List caches_;
    Counters ended_;          // of caches whose threads are gone
    ClassIndex largest_ = 0;  // asked of them since the last reset_largest()
};

}  // namespace vramkit::pool
