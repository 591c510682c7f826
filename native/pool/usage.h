// How many bytes users hold, and the most they ever held, without a shared counter on the hot path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "pool/types.h"

namespace vramkit::pool {

// Each cache counts what its thread took and gave back. The peak is exact to 64 KiB a cache: a
// cache may rise to its allowance without a word, and the allowances of all add up to the peak and
// 64 KiB for each. Below the peak nothing is shared; a cache that rises above its allowance asks
// for another, and only then are all looked at. Under a lock of its own, which is taken last before
// owner words.
class Usage {
  public:
    static constexpr std::int64_t kSlack = 64 * 1024;

    void add(Cache& cache) {
        const std::lock_guard guard(lock_);
        caches_.push_back(&cache);
        cache.allowance = kSlack;
    }
    // The cache goes; what it counted stays.
    void remove(Cache& cache) {
        const std::lock_guard guard(lock_);
        cache.take_for_sure();
        gone_ += cache.live;
        cache.leave();
        std::erase(caches_, &cache);
    }
    // The cache has risen above its allowance.
    void claim(Cache& cache) {
        const std::lock_guard guard(lock_);
        const std::int64_t live = take_all_words();
        peak_ = std::max(peak_, live);
        // Half of what is left below the peak to the one that asks, the rest to all alike.
        const std::int64_t left = peak_ - live;
        const std::int64_t share = left / 2 / static_cast<std::int64_t>(caches_.size());
        for (Cache* each : caches_) each->allowance = each->live + share + kSlack;
        cache.allowance += left / 2;
        leave_all_words();
    }
    std::int64_t live() {
        const std::lock_guard guard(lock_);
        const std::int64_t live = take_all_words();
        leave_all_words();
        return live;
    }
    std::int64_t peak() {
        const std::lock_guard guard(lock_);
        peak_ = std::max(peak_, take_all_words());
        leave_all_words();
        return peak_;
    }
    void reset_peak() {
        const std::lock_guard guard(lock_);
        peak_ = take_all_words();
        for (Cache* each : caches_) each->allowance = each->live + kSlack;
        leave_all_words();
    }

  private:
    // All at once, so that the sum is that of one moment.
    std::int64_t take_all_words() {
        std::int64_t live = gone_;
        for (Cache* each : caches_) {
            each->take_for_sure();
            live += each->live;
        }
        return live;
    }
    void leave_all_words() {
        for (Cache* each : caches_) each->leave();
    }

    std::mutex lock_;
    std::vector<Cache*> caches_;
    std::int64_t gone_ = 0;
    std::int64_t peak_ = 0;
};

}  // namespace vramkit::pool
