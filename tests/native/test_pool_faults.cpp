// Every driver call of every path fails.
#include <functional>
#include <vector>

#include "pool_bench.h"

using namespace bench;

TEST(a_mark_without_an_event_holds_the_blocks_until_the_card_is_waited_for) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    const auto pool = open_pool(card, config);
    StreamRef first = card.stream(), second = card.stream();
    first.told = false;  // its handle may be used only while it is given to the pool
    const std::uint64_t address = must_malloc(*pool, kPage, first);
    card.occupy(first);
    card.use(address, kPage, first);
    CHECK_EQUAL(gpu::sim().inject("cuEventCreate", 1, 1, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
    CHECK_EQUAL(gpu::sim().inject("cuCtxSynchronize", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    must_free(*pool, address);
    CHECK_EQUAL(card.calls("cuCtxSynchronize"), std::uint64_t{0});  // free waits for nothing
    const std::uint64_t other = must_malloc(*pool, kPage, second);
    CHECK(other != address);
    CHECK_EQUAL(pool->trim(true), std::uint64_t{0});  // the card could not be waited for
    CHECK_EQUAL(pool->trim(true), kPage);
    must_free(*pool, other);
    check_order(card);
}
