// Bytes in use and their peak, without a counter that all threads write.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "pool/types.h"

namespace vramkit::pool {

// Each cache counts what its thread took and gave back. The count may rise to the cache's
// allowance, and fall some way below it, without touching shared state: the hot path reads nothing
// that other threads write. The allowances and what is left over add up to the peak plus a slack of
// 64 KiB for each thread, shared by its caches:
//
//   sum of allowances + counts of caches that are gone + left = peak + sum of slacks
//
// So bytes in use exceed the recorded peak by the slacks at most. A cache that needs more takes
// from what is left, one that has far too much gives some back: one atomic operation, rarely. Only
// when nothing is left are all caches visited, under a lock of its own, which is the last one taken
// before biased locks.
class Usage {
  public:
    static constexpr std::int64_t kSlack = 64 * 1024;
    // What is left is divided into parts: one for each cache, and some more. A cache takes one part
    // at a time, and gives back when it has more than kSpareParts unused.
    static constexpr std::int64_t kMoreParts = 4;
    static constexpr std::int64_t kSpareParts = 3;

    void add(ThreadCache& cache) {
        const std::lock_guard guard(lock_);
        caches_.push_back(&cache);
        parts_.fetch_add(1, std::memory_order_relaxed);
        cache.slack = kSlack;
        allow(cache, kSlack);
    }
    // The caches of one thread share its 64 KiB.
    void share_slack(const std::vector<ThreadCache*>& of_thread) {
        const std::lock_guard guard(lock_);
        const std::int64_t each = kSlack / static_cast<std::int64_t>(of_thread.size());
        std::int64_t less = 0;
        for (ThreadCache* cache : of_thread) less += std::exchange(cache->slack, each) - each;
        take_slack(less);
    }
    // Removes a cache; what it counted stays.
    void remove(ThreadCache& cache) {
        const std::lock_guard guard(lock_);
        std::int64_t unseen = cache.slack;
        {
            const ThreadCache::Visited visited(cache);
            gone_ += cache.live;
            unseen -= cache.allowance - cache.live;
        }
        std::erase(caches_, &cache);
        parts_.fetch_sub(1, std::memory_order_relaxed);
        take_slack(unseen);
    }
    // With the cache's biased lock, after `live` rose. False: claim() must follow, without it.
    bool rise(ThreadCache& cache) {
        const std::int64_t lacking = cache.live - cache.allowance;
        if (lacking <= 0) [[likely]]
            return true;
        std::int64_t left = left_.load(std::memory_order_relaxed);
        std::int64_t taken = 0;
        do {
            if (left < lacking) return false;
            taken = std::min(left, lacking + part_of(left));
        } while (!left_.compare_exchange_weak(left, left - taken, std::memory_order_relaxed));
        allow(cache, cache.allowance + taken);
        return true;
    }
    // With the biased lock, after `live` fell: if the allowance is far above it, keeps one part.
    void fall(ThreadCache& cache) {
        if (cache.live >= cache.spare_below) [[likely]]
            return;
        const std::int64_t spare = cache.allowance - cache.live;
        const std::int64_t part = part_of(left_.load(std::memory_order_relaxed));
        const std::int64_t kept = std::min(spare, part + kSlack);  // there may be more by now
        allow(cache, cache.live + kept);
        left_.fetch_add(spare - kept, std::memory_order_relaxed);
    }
    // After rise() failed: this may be a new peak. On the cache's own thread.
    void claim(ThreadCache& cache) {
        const std::lock_guard guard(lock_);
        {
            // Another thread may have claimed in the meantime, so that there is enough again.
            const ThreadCache::Entered entered(cache);
            if (rise(cache)) return;
        }
        look_at_all();
    }
    std::int64_t live() const {
        const std::lock_guard guard(lock_);
        const AllVisited all(caches_);
        return sum();
    }
    std::int64_t peak() {
        const std::lock_guard guard(lock_);
        const AllVisited all(caches_);
        // Allowances stay as they are, so that frequent calls disturb no other thread.
        if (const std::int64_t risen = sum() - peak_; risen > 0) {
            peak_ += risen;
            left_.fetch_add(risen, std::memory_order_relaxed);
        }
        return peak_;
    }
    void reset_peak() {
        const std::lock_guard guard(lock_);
        const AllVisited all(caches_);
        const std::int64_t live = sum();
        start_from(live, live);
    }

  private:
    std::int64_t part_of(std::int64_t left) const {
        return std::max<std::int64_t>(left, 0) / parts_.load(std::memory_order_relaxed);
    }
    void allow(ThreadCache& cache, std::int64_t bytes) const {
        cache.allowance = bytes;
        const std::int64_t part = part_of(left_.load(std::memory_order_relaxed));
        cache.spare_below = bytes - kSpareParts * (part + kSlack);
    }
    // Takes slack away. If less is left, bytes that never counted are in use: count all caches.
    void take_slack(std::int64_t bytes) {
        if (left_.fetch_sub(bytes, std::memory_order_relaxed) < bytes) look_at_all();
    }
    void look_at_all() {
        const AllVisited all(caches_);
        start_from(sum(), peak_);
    }
    // With all biased locks.
    std::int64_t sum() const {
        std::int64_t live = gone_;
        for (const ThreadCache* each : caches_) live += each->live;
        return live;
    }
    // With all biased locks. Nothing is handed out in advance: active caches take their parts soon.
    void start_from(std::int64_t live, std::int64_t peak) {
        peak_ = std::max(peak, live);
        left_.store(peak_ - live, std::memory_order_relaxed);
        for (ThreadCache* each : caches_) allow(*each, each->live + each->slack);
    }

    mutable std::mutex lock_;
    std::vector<ThreadCache*> caches_;
    std::int64_t gone_ = 0;
    std::int64_t peak_ = 0;
    alignas(64) std::atomic<std::int64_t> left_{0};  // written by all threads, rarely
    std::atomic<std::int64_t> parts_{kMoreParts};
};

}  // namespace vramkit::pool
