// How many bytes users hold, and the most they ever held, without a counter that all threads write.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "pool/types.h"

namespace vramkit::pool {

// Each cache counts what its thread took and gave back. It may rise to its allowance without a
// word. The allowances and what is left over add up to the peak and 64 KiB for each cache:
//
//   sum of allowances + counts of caches that are gone + left = peak + caches * 64 KiB
//
// so users never hold more than the peak by more than that unseen. A cache that needs more takes
// from what is left, one that has far too much gives some back: one atomic operation, now and then.
// Only when nothing is left are all looked at, under a lock of its own, which is taken last before
// owner words.
class Usage {
  public:
    static constexpr std::int64_t kSlack = 64 * 1024;
    static constexpr std::int64_t kParts = 16;  // of what a cache holds, or would hold of the peak

    void add(Cache& cache) {
        const std::lock_guard guard(lock_);
        caches_.push_back(&cache);
        cache.allowance = kSlack;
    }
    // The cache goes; what it counted stays.
    void remove(Cache& cache) {
        const std::lock_guard guard(lock_);
        {
            const Cache::Visited visited(cache);
            gone_ += cache.live;
            left_.fetch_add(cache.allowance - kSlack - cache.live, std::memory_order_relaxed);
        }
        std::erase(caches_, &cache);
        // What it held by its 64 KiB alone was never seen.
        if (left_.load(std::memory_order_relaxed) < 0) look_at_all();
    }
    // With the cache's owner word, after `live` rose. False: claim() must follow, without it.
    bool rise(Cache& cache) {
        const std::int64_t lacking = cache.live - cache.allowance;
        if (lacking <= 0) [[likely]]
            return true;
        std::int64_t left = left_.load(std::memory_order_relaxed);
        std::int64_t taken = 0;
        do {
            if (left < lacking) return false;
            taken = std::min(left, lacking + part_of(cache));
        } while (!left_.compare_exchange_weak(left, left - taken, std::memory_order_relaxed));
        cache.allowance += taken;
        return true;
    }
    // With the owner word, after `live` fell: what is far above it is given back.
    void fall(Cache& cache) {
        const std::int64_t surplus = cache.allowance - cache.live;
        if (surplus <= 4 * (part_of(cache) + kSlack)) [[likely]]
            return;
        const std::int64_t given = surplus / 2;
        cache.allowance -= given;
        left_.fetch_add(given, std::memory_order_relaxed);
    }
    // Nothing was left for a cache that has risen: perhaps this is a new peak. For its own thread.
    void claim(Cache& cache) {
        const std::lock_guard guard(lock_);
        {
            // Others have claimed meanwhile, and there is enough again.
            const Cache::Entered entered(cache);
            if (rise(cache)) return;
        }
        look_at_all();
    }
    std::int64_t live() {
        const std::lock_guard guard(lock_);
        const AllVisited all(caches_);
        return sum();
    }
    std::int64_t peak() {
        const std::lock_guard guard(lock_);
        look_at_all();
        return peak_;
    }
    void reset_peak() {
        const std::lock_guard guard(lock_);
        const AllVisited all(caches_);
        const std::int64_t live = sum();
        share_out(live, live);
    }

  private:
    // What a cache takes at once beside what it lacks; one that has some times as much to spare
    // gives half of it back. Where one thread frees what another allocated, one count goes down for
    // ever and the other up: so neither decides alone.
    std::int64_t part_of(const Cache& cache) const {
        const std::int64_t fair = fair_part_.load(std::memory_order_relaxed);
        return cache.live < 0 ? fair / 8 : std::min(cache.live / kParts, fair);
    }

    void look_at_all() {
        const AllVisited all(caches_);
        share_out(sum(), peak_);
    }
    // With all words.
    std::int64_t sum() const {
        std::int64_t live = gone_;
        for (const Cache* each : caches_) live += each->live;
        return live;
    }
    // With all words: half of what is below the peak to the caches alike, the rest to who needs it.
    void share_out(std::int64_t live, std::int64_t peak) {
        peak_ = std::max(peak, live);
        std::int64_t left = peak_ - live;
        const auto count = static_cast<std::int64_t>(caches_.size());
        const std::int64_t share = count == 0 ? 0 : left / 2 / count;
        fair_part_.store(count == 0 ? 0 : peak_ / count / kParts, std::memory_order_relaxed);
        for (Cache* each : caches_) {
            const std::int64_t given = std::min(share, part_of(*each));
            each->allowance = each->live + given + kSlack;
            left -= given;
        }
        left_.store(left, std::memory_order_relaxed);
    }

    std::mutex lock_;
    std::vector<Cache*> caches_;
    std::int64_t gone_ = 0;
    std::int64_t peak_ = 0;
    std::atomic<std::int64_t> left_{0};
    std::atomic<std::int64_t> fair_part_{0};  // of the peak, for a cache
};

}  // namespace vramkit::pool
