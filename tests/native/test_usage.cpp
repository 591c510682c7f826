// The peak by allowances: exact to 64 KiB a thread; what all share is seldom touched, and all
// caches are hardly ever looked at.
#include "pool/threads/usage.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "testing.h"

using vramkit::pool::ThreadCache;
using vramkit::pool::Usage;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Caches of as many threads, as the pool uses them; and the true figures.
class Threads {
  public:
    explicit Threads(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            caches_.push_back(std::make_unique<ThreadCache>());
            usage_.add(*caches_.back());
        }
    }
    void allocate(std::size_t thread, std::int64_t bytes) {
        live_ += bytes;
        peak_ = std::max(peak_, live_);
        ++allocations;
        ThreadCache& cache = *caches_[thread];
        cache.live += bytes;
        const std::int64_t allowed = cache.allowance;
        const bool counted = usage_.rise(cache);
        touches += cache.allowance != allowed;
        if (counted) return;
        ++claims;
        usage_.claim(cache);
    }
    void free(std::size_t thread, std::int64_t bytes) {
        live_ -= bytes;
        ThreadCache& cache = *caches_[thread];
        cache.live -= bytes;
        const std::int64_t allowed = cache.allowance;
        usage_.fall(cache);
        touches += cache.allowance != allowed;
    }
    void check() {
        const auto slack = Usage::kSlack * static_cast<std::int64_t>(caches_.size());
        const std::int64_t peak = usage_.peak();
        CHECK(peak <= peak_ && peak >= peak_ - slack && peak >= live_);
        CHECK_EQUAL(usage_.live(), live_);
    }
    void start_counting() { allocations = claims = touches = 0; }

    int allocations = 0;
    int claims = 0;
    int touches = 0;  // of what is left for all

  private:
    Usage usage_;
    std::vector<std::unique_ptr<ThreadCache>> caches_;
    std::int64_t live_ = 0;
    std::int64_t peak_ = 0;
};

}  // namespace

TEST(threads_that_free_their_own_soon_have_what_they_need) {
    constexpr std::size_t kThreads = 16, kLive = 64;
    Threads threads(kThreads);
    std::mt19937 random(1);
    std::vector<std::vector<std::int64_t>> live(kThreads);
    const auto some = [&] { return std::int64_t{1} << (8 + random() % 13); };
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
        for (std::size_t i = 0; i < kLive; ++i) {
            live[thread].push_back(some());
            threads.allocate(thread, live[thread].back());
        }
    }
    for (int phase = 0; phase < 4; ++phase) {
        threads.start_counting();
        for (int step = 0; step < 100'000; ++step) {
            const std::size_t thread = random() % kThreads;
            std::int64_t& block = live[thread][random() % kLive];
            threads.free(thread, block);
            block = some();
            threads.allocate(thread, block);
        }
        threads.check();
    }
    CHECK(threads.claims < 100);
    CHECK(threads.touches < threads.allocations / 10);
}

TEST(blocks_that_another_thread_frees_are_counted_without_many_looks) {
    constexpr std::size_t kBatch = 64, kMostBatches = 8;
    for (const std::size_t couples : {1, 8}) {
        Threads threads(2 * couples);
        std::mt19937 random(2);
        std::vector<std::deque<std::vector<std::int64_t>>> queues(couples);
        for (int phase = 0; phase < 4; ++phase) {
            threads.start_counting();
            for (int step = 0; step < 10'000; ++step) {
                const std::size_t couple = random() % couples;
                auto& queue = queues[couple];
                if (queue.empty() || (queue.size() < kMostBatches && random() % 2 == 0)) {
                    std::vector<std::int64_t> batch(kBatch);
                    for (std::int64_t& bytes : batch) {
                        bytes = std::int64_t{1} << (8 + random() % 13);
                        threads.allocate(2 * couple, bytes);
                    }
                    queue.push_back(std::move(batch));
                } else {
                    for (const std::int64_t bytes : queue.front()) {
                        threads.free(2 * couple + 1, bytes);
                    }
                    queue.pop_front();
                }
            }
            threads.check();
        }
        CHECK(threads.allocations > 300'000 && threads.claims < 100);
        CHECK(threads.touches < threads.allocations / 20);
    }
}

TEST(threads_that_end_are_counted_however_little_each_held) {
    Usage usage;
    ThreadCache last;
    usage.add(last);
    constexpr std::int64_t kThreads = 1000, kBytes = 60'000;
    for (std::int64_t i = 0; i < kThreads; ++i) {
        ThreadCache cache;
        usage.add(cache);
        cache.live = kBytes;
        CHECK(usage.rise(cache));  // by its 64 KiB
        usage.remove(cache);
    }
    for (std::int64_t i = 0; i < kThreads; ++i) {
        last.live -= kBytes;
        usage.fall(last);
    }
    CHECK_EQUAL(usage.live(), std::int64_t{0});
    CHECK(usage.peak() >= kThreads * kBytes - 2 * Usage::kSlack);
}

TEST(the_caches_of_one_thread_have_one_slack) {
    Usage usage;
    std::vector<std::unique_ptr<ThreadCache>> caches;
    std::vector<ThreadCache*> of_thread;
    constexpr std::int64_t kCaches = 200, kBytes = 60'000;
    for (std::int64_t i = 0; i < kCaches; ++i) {
        caches.push_back(std::make_unique<ThreadCache>());
        of_thread.push_back(caches.back().get());
        usage.add(*caches.back());
        usage.share_slack(of_thread);
        caches.back()->live = kBytes;
        if (!usage.rise(*caches.back())) usage.claim(*caches.back());
    }
    for (const auto& cache : caches) {
        cache->live = 0;
        usage.fall(*cache);
    }
    CHECK(usage.peak() >= kCaches * kBytes - Usage::kSlack);
    for (const auto& cache : caches) usage.remove(*cache);
    CHECK(usage.peak() >= kCaches * kBytes - Usage::kSlack);
    CHECK(usage.peak() <= kCaches * kBytes);
}

TEST(threads_that_do_nothing_keep_nothing_from_those_that_work) {
    Threads threads(128);
    const auto rise_and_fall = [&] {
        for (int i = 0; i < 1000; ++i) threads.allocate(0, kMiB);
        threads.check();
        for (int i = 0; i < 1000; ++i) threads.free(0, kMiB);
        threads.check();
    };
    rise_and_fall();
    threads.start_counting();
    rise_and_fall();
    CHECK_EQUAL(threads.claims, 0);
}

TEST(threads_that_have_ended_have_no_part) {
    Usage usage;
    ThreadCache last;
    usage.add(last);
    last.live = 100 * kMiB;
    if (!usage.rise(last)) usage.claim(last);
    for (int i = 0; i < 1000; ++i) {
        ThreadCache cache;
        usage.add(cache);
        usage.remove(cache);
    }
    last.live = 0;
    usage.fall(last);
    last.live = kMiB;
    CHECK(usage.rise(last));
    CHECK(last.allowance > 10 * kMiB);  // a part of five, not of a thousand
}

TEST(a_peak_that_no_cache_had_to_tell_of_is_known_to_who_asks) {
    Usage usage;
    ThreadCache cache;
    usage.add(cache);
    cache.live = 1000;
    CHECK(usage.rise(cache));
    CHECK_EQUAL(usage.peak(), std::int64_t{1000});
    cache.live = 0;
    usage.fall(cache);
    CHECK_EQUAL(usage.peak(), std::int64_t{1000});
}

TEST(a_new_peak_is_seen_at_once) {
    Threads threads(3);
    for (int i = 1; i <= 50; ++i) {
        threads.allocate(static_cast<std::size_t>(i) % 3, i * kMiB);
        threads.check();
        if (i % 4 == 0) threads.free(static_cast<std::size_t>(i) % 3, i * kMiB);
        threads.check();
    }
}
