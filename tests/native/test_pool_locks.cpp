// How many mutexes each path of the pool locks.
#include "pool_bench.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
// Sanitizers have functions of their own in front of those that are counted here.
TEST(locks_are_counted_in_builds_without_sanitizers) { CHECK(true); }
#else

#include <dlfcn.h>
#include <pthread.h>

#include <span>
#include <vector>

using namespace bench;

namespace {

constexpr std::uint64_t kSmall = 4096, kLarge = 4 * kMiB;

thread_local int* counter = nullptr;  // null: nobody counts on this thread

const void* library_of(const void* code) {
    Dl_info info{};
    return dladdr(code, &info) != 0 ? info.dli_fbase : nullptr;
}

// The simulated driver has locks too, and they are not the pool's.
int count(int result, const void* caller) {
    if (counter == nullptr || result != 0) return result;
    static const void* const pools = library_of(reinterpret_cast<const void*>(&Pool::open));
    *counter += library_of(caller) == pools;
    return result;
}

auto* next(const char* name) { return decltype(&pthread_mutex_lock)(dlsym(RTLD_NEXT, name)); }

template <class Work>
int locks_in(Work work, int times = 1) {
    int locks = 0;
    counter = &locks;
    for (int done = 0; done < times; ++done) work();
    counter = nullptr;
    return locks;
}
int locks_in_malloc(Pool& pool, std::uint64_t bytes, const StreamRef& stream, int blocks = 1) {
    return locks_in([&] { must_malloc(pool, bytes, stream); }, blocks);
}
int locks_in_free(Pool& pool, std::span<const std::uint64_t> blocks) {
    return locks_in([&] {
        for (const std::uint64_t block : blocks) must_free(pool, block);
    });
}
int locks_in_pairs(const Card& card, std::uint64_t bytes, const StreamRef& stream, int pairs,
                   std::optional<StreamRef> given = {}) {
    const auto pool = open_pool(card);
    std::uint64_t block = must_malloc(*pool, bytes, stream);
    const auto pair = [&] {
        must_free(*pool, block, given);
        block = must_malloc(*pool, bytes, stream);
    };
    return locks_in(pair, pairs);
}

}  // namespace

extern "C" [[gnu::visibility("default")]] int pthread_mutex_lock(pthread_mutex_t* m) noexcept {
    static auto* const lock = next("pthread_mutex_lock");
    return count(lock(m), __builtin_return_address(0));
}
extern "C" [[gnu::visibility("default")]] int pthread_mutex_trylock(pthread_mutex_t* m) noexcept {
    static auto* const try_lock = next("pthread_mutex_trylock");
    return count(try_lock(m), __builtin_return_address(0));
}

TEST(the_pools_locks_are_counted_and_the_drivers_are_not) {
    const Card card;
    CHECK_EQUAL(locks_in([&, pool = open_pool(card)] { pool->config(); }), 1);
    CHECK_EQUAL(locks_in([&] { card.stream(); }), 0);
}

TEST(a_free_and_a_malloc_take_no_lock_with_the_cache_and_one_each_with_the_stream_cache) {
    const Card card;
    const StreamRef raw = card.stream(false);
    for (const StreamRef& stream : {card.stream(true), raw, legacy_stream()}) {
        CHECK_EQUAL(locks_in_pairs(card, kSmall, stream, 100), 0);
        CHECK_EQUAL(locks_in_pairs(card, kSmall, stream, 100, stream), 0);
        CHECK_EQUAL(locks_in_pairs(card, kLarge, stream, 100), 2 * 100);
    }
    // A given raw handle gets a fence every 32 MiB, with an event from the event pool.
    CHECK_EQUAL(locks_in_pairs(card, kLarge, raw, 8, raw), 2 * 8 + 1);
}

TEST(a_spill_and_a_batch_take_one_lock_and_blocks_of_other_threads_none) {
    const Card card;
    for (const StreamRef& stream : {card.stream(true), card.stream(false), legacy_stream()}) {
        const auto pool = open_pool(card);
        std::vector<std::uint64_t> blocks(5 * 16);  // batches, so that none is left over
        for (std::uint64_t& block : blocks) block = must_malloc(*pool, kSmall, stream);
        const std::span all(blocks);
        CHECK_EQUAL(locks_in_free(*pool, all.first(64)), 0);
        CHECK_EQUAL(locks_in_free(*pool, all.subspan(64, 1)), 1);  // and 33 of the 65 leave
        CHECK_EQUAL(locks_in_malloc(*pool, kSmall, stream, 32), 0);
        CHECK_EQUAL(locks_in_malloc(*pool, kSmall, stream, 16), 1);
        std::thread([&] {
            // The first makes a cache: the pool's and usage's.
            CHECK_EQUAL(locks_in_free(*pool, all.subspan(65, 1)), 2);
            CHECK_EQUAL(locks_in_free(*pool, all.subspan(66)), 0);
        }).join();
    }
}

TEST(ranges_that_another_thread_frees_come_in_batches_and_those_that_this_thread_frees_do_not) {
    const Card card;
    constexpr std::uint64_t kRange = 256 * 1024;
    for (const StreamRef& stream : {card.stream(true), card.stream(false), legacy_stream()}) {
        const auto pool = open_pool(card);
        std::vector<std::uint64_t> blocks(10 * 16);  // more than a cache keeps
        for (std::uint64_t& block : blocks) block = must_malloc(*pool, kRange, stream);
        std::thread([&] { locks_in_free(*pool, blocks); }).join();
        CHECK_EQUAL(pool->stats().waiting, 10 * 16 * kRange);
        for (int batch = 0; batch < 10; ++batch) {
            CHECK_EQUAL(locks_in_malloc(*pool, kRange, stream, 16), 1);
        }
        CHECK_EQUAL(pool->stats().reserved, 10 * 16 * kRange);
        // What leaves this thread's cache stays where it can be joined until it is needed.
        locks_in_free(*pool, blocks);
        const auto waiting = static_cast<int>(pool->stats().waiting / kRange);
        CHECK(waiting > 32);
        CHECK_EQUAL(locks_in_malloc(*pool, kRange, stream, 10 * 16 - waiting), 0);
        CHECK_EQUAL(locks_in_malloc(*pool, kRange, stream, 16), 16);
        CHECK_EQUAL(pool->check_invariants(), std::string());
    }
}

TEST(splitting_and_joining_what_a_stream_has_freed_takes_its_stream_caches_lock_alone) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true);
    must_free(*pool, must_malloc(*pool, 16 * kMiB, stream));
    // The first is cut out of what was joined, the second is what is left of it.
    const auto round = [&](std::uint64_t first) {
        const std::uint64_t front = must_malloc(*pool, first, stream);
        const std::uint64_t back = must_malloc(*pool, 16 * kMiB - first, stream);
        CHECK_EQUAL(back, front + first);
        must_free(*pool, front);
        must_free(*pool, back);
    };
    round(4 * kMiB);  // a record is made
    for (const std::uint64_t first : {6 * kMiB, 8 * kMiB, 4 * kMiB}) {
        CHECK_EQUAL(locks_in([&] { round(first); }), 2 + 2);
    }
    CHECK_EQUAL(pool->stats().large_blocks, std::uint64_t{2});
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(past_the_stream_cache_it_is_the_pools_lock_and_few_others) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef told = card.stream(true), raw = card.stream(false);
    must_malloc(*pool, kSmall, told);
    // A slab on idle memory: the stream cache's, the pool's, and that of the records of ranges
    // twice, for the cut and the slab.
    CHECK_EQUAL(locks_in_malloc(*pool, 8 * kSmall, told), 2 + 2);
    // Grown. Before that, free memory of all streams is gathered: usage's for the peak, the lock of
    // each stream cache, and that of its own twice more. Around the driver calls and for the rest
    // of what they mapped its own is taken three times, that of the records four times; and
    // usage's.
    const auto gathered = [](int streams) { return 1 + streams + 2; };
    constexpr int kMapped = 3 + 4 + 1;
    CHECK_EQUAL(locks_in_malloc(*pool, kLarge, told), 2 + gathered(1) + kMapped);
    // The thread's second cache is made: registry's, pool's, usage's twice. A raw stream's stream
    // cache is asked for fences to record, at first and when memory is gathered; the other one for
    // a block. A small block asks its own for a range of two sizes. What was gathered serves.
    constexpr int kFences = 2, kOther = 1, kSlab = 2;
    CHECK_EQUAL(locks_in_malloc(*pool, kSmall, raw),
                4 + 2 + kFences + kOther + kSlab + gathered(2) + 2);
    CHECK_EQUAL(locks_in_malloc(*pool, kLarge, raw), 2 + kFences + kOther + gathered(2) + kMapped);
    CHECK_EQUAL(pool->stats().growth_hits, std::uint64_t{1 + 2});
    // The pool's, usage's for now and for the peak, large blocks'; for hits and bytes each stream
    // cache's.
    CHECK_EQUAL(locks_in([&] { pool->stats(); }), 4 + 2 * 2);
}

#endif
