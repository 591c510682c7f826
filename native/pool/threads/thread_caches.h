// The thread caches of one pool: which threads have one, how much each may keep, and how blocks
// move between them and the stream caches.
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

// With the pool's lock, in its context, unless stated otherwise.
class ThreadCaches {
  public:
    ThreadCaches(std::uint64_t pool, const DeviceContext& card, Streams& streams)
        : pool_(pool), card_(card), streams_(streams) {}
    ThreadCaches(const ThreadCaches&) = delete;
    ThreadCaches& operator=(const ThreadCaches&) = delete;

    // The cache of the calling thread for a stream, made if there is none.
    ThreadCache& of(std::uint32_t number);
    // Retires the calling thread's caches of streams that have ended, so that a thread that keeps
    // using new streams has caches only for live ones.
    void retire_ended();
    // The thread of a cache ends.
    void retire(ThreadCache* cache);
    void configure(const Config& config);

    // A block of the stream cache, of so many bytes. Takes a few small ones: those not handed out
    // now go into the thread cache. Called without the pool's lock and the biased lock.
    BlockRef refill(ThreadCache& cache, ClassIndex index, std::uint64_t bytes);
    // How many blocks the cache may take besides the one asked for. With its biased lock.
    std::size_t room_for(const ThreadCache& cache, ClassIndex index,
                         bool from_stream_cache = false) const;
    // Moves excess blocks to the stream cache, whose lock is held; `full` is the class that grew.
    // True: the stream cache now has too many of a class.
    bool evict_excess(ThreadCache& cache, ClassIndex full);
    std::size_t most_in_stream_cache() const {
        return stream_cache_blocks_.load(std::memory_order_relaxed);
    }

    // Moves all blocks of a cache to the stream cache; to idle memory if the stream has ended and
    // its work is done. end: what is freed here later leaves at once. from: of this class and those
    // above it.
    void drain(ThreadCache& cache, bool end = false, ClassIndex from = 0);
    void drain_all();
    // Large blocks of all caches.
    void drain_ranges();
    // Moves blocks that were not needed since the last call to the stream caches.
    void decay();
    // The stream is about to be destroyed; its caches pass on what is still freed.
    void end_stream(std::uint32_t number);
    // Ends captures whose graphs are gone, and drops ended streams whose work is done.
    void drop_ended();

    // Bytes in all thread caches. Not exact: their threads go on.
    std::uint64_t cached_bytes() const;

    // The most bytes that any thread asked for at once since the last reset_largest().
    std::uint64_t largest_asked_for() const;
    std::uint64_t reset_largest();
    Counters counters() const;

    using List = std::vector<std::unique_ptr<ThreadCache>>;
    const List& all() const { return caches_; }
    // After a reset: no address from before it is handed out again.
    void drop_blocks();
    void clear() { caches_.clear(); }

    alignas(64) Usage usage;  // written at times: not on a cache line that all threads read

  private:
    ThreadCache* make(std::uint32_t number);
    void set_bounds(ThreadCache& cache, std::size_t caches_of_thread) const;
    static void give_up_ranges(ThreadCache& cache, StreamCache& stream_cache);
    template <class Move>
    void evict_bytes(ThreadCache& cache, std::uint64_t most, Move move);

    const std::uint64_t pool_;
    const DeviceContext& card_;
    Streams& streams_;
    std::atomic<std::uint64_t> batch_{0};
    std::atomic<std::uint64_t> stream_cache_blocks_{0};
    std::uint64_t most_blocks_ = 0, most_bytes_ = 0, most_thread_bytes_ = 0;
    List caches_;
    Counters ended_;             // of caches that were retired
    std::uint64_t largest_ = 0;  // asked of those since the last reset_largest()
};

}  // namespace vramkit::pool
