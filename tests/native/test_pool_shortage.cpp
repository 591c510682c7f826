// A pool that is short of memory: what it waits for, what it takes apart, when it gives up.
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
