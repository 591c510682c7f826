// A pool that is short of memory: what it waits for, what it takes apart, when it gives up.
#include <algorithm>
#include <vector>

#include "pool_bench.h"

using namespace bench;

TEST(without_leave_to_wait_a_block_under_way_is_not_handed_out) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    config.limit = 2 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef first = card.stream(), second = card.stream();
    const std::uint64_t address = must_malloc(*pool, kPage, first);
    card.occupy(first);
    card.use(address, kPage, first);
    must_free(*pool, address);
    Failure why;
    CHECK_EQUAL(pool->malloc(kPage, second, false, why), std::uint64_t{0});
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK(why.message.find("asked for 2097152 bytes") != std::string::npos);
    CHECK_EQUAL(card.calls("cuStreamWaitEvent"), std::uint64_t{0});
}

TEST(memory_of_idle_classes_serves_others_when_the_card_is_full) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 30; ++i) blocks.push_back(must_malloc(*pool, 32 * kMiB, stream));
    for (const std::uint64_t block : blocks) must_free(*pool, block);
    const std::uint64_t one = must_malloc(*pool, 900 * kMiB, stream);
    CHECK(one != 0);
    must_free(*pool, one);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    CHECK(pool->trim(true) > 0);
    CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    check_order(card);
}

TEST(preallocation_of_large_blocks_keeps_to_the_limit) {
    const Card card;
    Config config;
    config.limit = 32 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef stream = card.stream(true);
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(must_malloc(*pool, 4 * kMiB, stream));
    for (int i = 0; i < 8; i += 2) must_free(*pool, blocks[i]);
    // A stream keeps what it has freed. The request of another one makes it idle, in pieces between
    // blocks that are live.
    gpu::sim().advance(kSecond);
    Failure why;
    CHECK_EQUAL(pool->malloc(20 * kMiB, stream, true, why), std::uint64_t{0});
    CHECK_EQUAL(pool->stats().idle, std::uint64_t{0});
    CHECK_EQUAL(pool->malloc(20 * kMiB, card.stream(true), true, why), std::uint64_t{0});
    CHECK_EQUAL(pool->stats().idle, 16 * kMiB);
    CHECK(pool->preallocate(16 * kMiB, 1, why));
    CHECK_EQUAL(pool->stats().reserved, config.limit);
    CHECK(!pool->preallocate(16 * kMiB, 2, why));
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(pool->stats().reserved, config.limit);
    for (int i = 1; i < 8; i += 2) must_free(*pool, blocks[i]);
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

namespace {

// A host function that frees a block. The first free of a thread takes the pool's lock.
struct Freeing {
    Pool& pool;
    std::uint64_t block;

    static void run(void* given) {
        const Freeing& freeing = *static_cast<Freeing*>(given);
        must_free(freeing.pool, freeing.block);
    }
};

}  // namespace

TEST(a_malloc_that_waits_on_the_host_lets_a_host_function_free) {
    const Card card;
    Config config;
    config.limit = 8 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef busy = card.stream(true), asks = card.stream(true);
    const std::uint64_t first = must_malloc(*pool, 2 * kMiB, busy);
    Freeing freeing{*pool, must_malloc(*pool, 2 * kMiB, busy)};
    const std::uint64_t second = must_malloc(*pool, 4 * kMiB, busy);
    CHECK_EQUAL(card.call.cuLaunchHostFunc(busy.handle, &Freeing::run, &freeing), CUDA_SUCCESS);
    must_free(*pool, first);
    must_free(*pool, second);
    // It needs what the function frees too: a wait on the GPU does not help, only one for the
    // stream, which waits for the function.
    const std::uint64_t whole = must_malloc(*pool, 8 * kMiB, asks);
    CHECK(whole != 0);
    CHECK(card.calls("cuEventSynchronize") > 0);
    must_free(*pool, whole);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(one_step_of_the_background_gives_back_a_bounded_number_of_handles) {
    const Card card("data=off,capacity=8GiB");
    Config config;
    config.decay_ms = 1000;
    const auto pool = open_pool(card, config);
    const StreamRef stream = card.stream(true);
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 300; ++i) blocks.push_back(must_malloc(*pool, 8 * kMiB, stream));
    for (const std::uint64_t block : blocks) must_free(*pool, block);
    bool more = true;
    std::uint64_t most = 0;
    for (int steps = 0; pool->stats().reserved > 0 && steps < 100; ++steps) {
        const std::uint64_t before = card.calls("cuMemUnmap") + card.calls("cuMemRelease");
        more = pool->step();
        most = std::max(most, card.calls("cuMemUnmap") + card.calls("cuMemRelease") - before);
        // It says that more is to do, and then does it without waiting for time to pass.
        if (!more) gpu::sim().advance(kSecond);
    }
    CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    CHECK(most <= 64 + 2 * 32);
    CHECK(card.calls("cuMemUnmap") >= 300);
}

namespace {

// A pool of 16 MiB, all of it in small blocks in the thread's cache; their work is under way or
// not.
void fill_cache(const Card& card, Pool& pool, const StreamRef& stream, bool busy) {
    std::vector<std::uint64_t> blocks;
    Failure why;
    while (const std::uint64_t block = pool.malloc(256 * 1024, stream, false, why)) {
        blocks.push_back(block);
    }
    CHECK(blocks.size() > 50);
    if (busy) card.occupy(stream);
    for (const std::uint64_t block : blocks) must_free(pool, block, stream);
}

Config small_pool_with_large_caches(vramkit::pool::Large large = vramkit::pool::Large::pool) {
    Config config;
    config.limit = 16 * kMiB;
    config.large = large;
    config.thread_cache_max_blocks = config.global_cache_max_blocks = 100'000;
    return config;
}

// 16 MiB that were allocated on one stream, used on another, and freed; both are busy.
void hold_a_block(const Card& card, Pool& pool, const StreamRef& home, const StreamRef& other) {
    const std::uint64_t block = must_malloc(pool, 16 * kMiB, home);
    Failure why;
    CHECK(pool.also_used_on(block, other, why));
    card.order(home, other);
    card.occupy(other);
    card.use(block, kMiB, other);
    for (int i = 0; i < 3; ++i) card.occupy(home);
    must_free(pool, block);
}

}  // namespace

TEST(what_the_caches_of_a_stream_hold_serves_its_own_larger_request) {
    for (const bool durable : {true, false}) {
        for (const bool busy : {true, false}) {
            const Card card;
            const auto pool = open_pool(card, small_pool_with_large_caches());
            const StreamRef stream = card.stream(durable);
            fill_cache(card, *pool, stream, busy);
            Failure why;
            const std::uint64_t large = pool->malloc(8 * kMiB, stream, busy, why);
            CHECK(large != 0);
            if (large != 0) must_free(*pool, large, stream);
            check_order(card);
        }
    }
}

TEST(a_block_straight_from_the_driver_waits_for_what_caches_hold) {
    const Card card;
    const auto pool = open_pool(card, small_pool_with_large_caches(vramkit::pool::Large::direct));
    const StreamRef stream = card.stream(true);
    fill_cache(card, *pool, stream, true);
    const std::uint64_t direct = must_malloc(*pool, 8 * kMiB, stream);
    CHECK(direct != 0);
    if (direct != 0) must_free(*pool, direct);
}

TEST(held_blocks_are_waited_for_on_both_streams) {
    const Card card;
    Config config;
    config.limit = 16 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef home = card.stream(true), other = card.stream(true), asks = card.stream(true);
    hold_a_block(card, *pool, home, other);
    const std::uint64_t block = must_malloc(*pool, 8 * kMiB, asks);
    CHECK(block != 0);
    if (block != 0) must_free(*pool, block);
    check_order(card);
}

TEST(held_blocks_go_back_to_the_driver_with_all_else) {
    for (const bool durable : {true, false}) {
        for (const bool close : {true, false}) {
            const Card card;
            const auto pool = open_pool(card);
            hold_a_block(card, *pool, card.stream(durable), card.stream(durable));
            Failure why;
            if (close) {
                CHECK(pool->close(why));
                check_nothing_left();
            } else {
                CHECK_EQUAL(pool->trim(true), 16 * kMiB);
            }
            CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
        }
    }
}

TEST(a_held_block_that_is_smaller_than_the_one_before_it_is_no_use_after_free) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true), other = card.stream(true);
    must_free(*pool, must_malloc(*pool, 4096, stream));
    const std::uint64_t block = must_malloc(*pool, 3900, stream);
    card.use(block, 3900, stream);
    card.order(stream, other);
    Failure why;
    CHECK(pool->also_used_on(block, other, why));
    card.use(block, 3900, other);
    must_free(*pool, block);
    CHECK_EQUAL(card.call.cuCtxSynchronize(), CUDA_SUCCESS);
    pool->step();
    check_order(card);
}

TEST(unmaps_that_the_driver_refuses_do_not_keep_the_background_busy) {
    const Card card;
    Config config;
    config.decay_ms = 10;
    config.enable_defrag = false;
    const auto pool = open_pool(card, config);
    const StreamRef stream = card.stream(true);
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 60; ++i) blocks.push_back(must_malloc(*pool, 4 * kMiB, stream));
    for (const std::uint64_t block : blocks) must_free(*pool, block);
    CHECK_EQUAL(gpu::sim().inject("cuMemUnmap", 1, 1'000'000, CUDA_ERROR_INVALID_VALUE, 0), 0);
    int more = 0;
    for (int i = 0; i < 50; ++i) {
        more += pool->step() ? 1 : 0;
        gpu::sim().advance(kSecond);
    }
    gpu::sim().clear_faults();
    CHECK(more < 5);
}
