// Callbacks that a pool asks for memory when it is short.
#include <atomic>
#include <future>
#include <new>
#include <stdexcept>
#include <vector>

#include "pool_bench.h"

using namespace bench;

namespace {

// Blocks that can be freed for others: the last one first, as many as are asked for.
struct Holder {
    Pool& pool;
    const StreamRef stream;
    std::vector<std::uint64_t> blocks;
    std::vector<std::uint64_t> asked;
    static constexpr std::uint64_t kBytes = 4 * kMiB;

    Holder(Pool& of, const StreamRef& on, int count) : pool(of), stream(on) {
        for (int i = 0; i < count; ++i) blocks.push_back(must_malloc(pool, kBytes, stream));
    }
    std::uint64_t give(std::uint64_t bytes) {
        asked.push_back(bytes);
        std::uint64_t freed = 0;
        for (; freed < bytes && !blocks.empty(); blocks.pop_back(), freed += kBytes) {
            must_free(pool, blocks.back(), stream);
        }
        return freed;
    }
    std::uint64_t listen() {
        return pool.shortage().add([this](std::uint64_t bytes) { return give(bytes); });
    }
};

bool is_refused(Pool& pool, std::uint64_t bytes, const StreamRef& stream, bool may_wait = true) {
    Failure why;
    return pool.malloc(bytes, stream, may_wait, why) == 0 &&
           why.kind == Failure::Kind::out_of_memory;
}

}  // namespace

TEST(a_callback_frees_what_a_malloc_is_short_of) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef holds = card.stream(true), asks = card.stream(true);
    Holder holder(*pool, holds, 4);
    holder.listen();
    const std::uint64_t one = must_malloc(*pool, 4 * kMiB, asks);
    CHECK_EQUAL(holder.blocks.size(), std::size_t{3});
    CHECK_EQUAL(holder.asked, std::vector<std::uint64_t>{4 * kMiB});
    const std::uint64_t two = must_malloc(*pool, 6 * kMiB, asks);
    CHECK_EQUAL(holder.blocks.size(), std::size_t{1});
    CHECK_EQUAL(holder.asked.size(), std::size_t{2});
    must_free(*pool, one);
    must_free(*pool, two);
    must_free(*pool, holder.blocks.back());
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(a_callback_is_told_what_is_lacking_and_then_the_whole_request) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef stream = card.stream(true);
    Holder holder(*pool, stream, 3);
    std::vector<std::uint64_t> asked;
    pool->shortage().add([&](std::uint64_t bytes) {
        asked.push_back(bytes);
        return asked.size() == 1 ? std::uint64_t{1} : holder.give(bytes);
    });
    must_free(*pool, must_malloc(*pool, 5 * kMiB, stream));
    CHECK_EQUAL(asked, (std::vector<std::uint64_t>{kMiB, 5 * kMiB}));
    holder.give(16 * kMiB);
}

TEST(a_block_that_a_callback_freed_is_handed_out_behind_its_work) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef holds = card.stream(true), asks = card.stream(true);
    Holder holder(*pool, holds, 4);
    holder.listen();
    card.occupy(holds);
    for (const std::uint64_t block : holder.blocks) card.use(block, Holder::kBytes, holds);
    const std::uint64_t block = must_malloc(*pool, 4 * kMiB, asks);
    CHECK_EQUAL(card.calls("cuEventSynchronize"), std::uint64_t{0});
    card.use(block, 4 * kMiB, asks);
    // No single block serves this one: pieces of several, when their work is done.
    const std::uint64_t large = must_malloc(*pool, 10 * kMiB, asks);
    card.use(large, 10 * kMiB, asks);
    CHECK(holder.blocks.empty());
    must_free(*pool, block);
    must_free(*pool, large);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(callbacks_are_asked_one_after_the_other_until_there_is_enough) {
    const Card card;
    const auto pool = open_pool(card, limited(24));
    const StreamRef stream = card.stream(true);
    Holder one(*pool, stream, 2), two(*pool, stream, 2), three(*pool, stream, 2);
    for (Holder* each : {&one, &two, &three}) each->listen();
    const std::uint64_t block = must_malloc(*pool, 12 * kMiB, stream);
    CHECK_EQUAL(one.asked, std::vector<std::uint64_t>{12 * kMiB});
    CHECK_EQUAL(two.asked, std::vector<std::uint64_t>{4 * kMiB});
    CHECK(three.asked.empty());
    must_free(*pool, block);
    for (Holder* each : {&two, &three}) each->give(24 * kMiB);
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(a_callback_runs_without_the_pools_locks_and_is_not_called_by_itself) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef stream = card.stream(true);
    Holder holder(*pool, stream, 4);
    int calls = 0;
    pool->shortage().add([&](std::uint64_t bytes) -> std::uint64_t {
        ++calls;
        CHECK(is_refused(*pool, 4 * kMiB, stream));
        // Another thread allocates and frees meanwhile.
        const std::uint64_t block = holder.blocks.back();
        holder.blocks.pop_back();
        std::async(std::launch::async, [&] {
            must_free(*pool, block, stream);
            must_free(*pool, must_malloc(*pool, 2 * kMiB, stream));
            CHECK(pool->stats().reserved > 0);
        }).get();
        return bytes;
    });
    must_free(*pool, must_malloc(*pool, 4 * kMiB, stream));
    CHECK_EQUAL(calls, 1);
    holder.give(16 * kMiB);
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(a_request_that_may_not_wait_or_can_never_be_served_asks_nobody) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef stream = card.stream(true);
    Holder holder(*pool, stream, 4);
    holder.listen();
    CHECK(is_refused(*pool, 4 * kMiB, stream, false));
    CHECK(is_refused(*pool, 17 * kMiB, stream));
    CHECK(holder.asked.empty());
    holder.give(16 * kMiB);
}

TEST(memory_that_can_be_had_by_a_wait_on_the_gpu_is_taken_before_callbacks_are_asked) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef holds = card.stream(true), asks = card.stream(true);
    Holder holder(*pool, holds, 4);
    holder.listen();
    card.occupy(holds);
    must_free(*pool, holder.blocks.back());
    holder.blocks.pop_back();
    must_free(*pool, must_malloc(*pool, 4 * kMiB, asks));
    CHECK(holder.asked.empty());
    holder.give(16 * kMiB);
}

TEST(a_callback_that_frees_less_than_it_says_does_not_keep_a_malloc_for_ever) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef stream = card.stream(true);
    Holder holder(*pool, stream, 4);
    int calls = 0;
    pool->shortage().add([&](std::uint64_t bytes) {
        ++calls;
        return bytes;
    });
    CHECK(is_refused(*pool, 4 * kMiB, stream));
    CHECK_EQUAL(calls, 8);
    holder.give(16 * kMiB);
}

TEST(a_callback_is_asked_again_if_what_it_freed_is_not_enough) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef stream = card.stream(true);
    Holder holder(*pool, stream, 4);
    pool->shortage().add([&](std::uint64_t) { return holder.give(1); });
    must_free(*pool, must_malloc(*pool, 12 * kMiB, stream));
    CHECK_EQUAL(holder.asked.size(), std::size_t{3});
    holder.give(16 * kMiB);
}

TEST(large_blocks_of_the_driver_ask_too) {
    const Card card;
    Config config = limited(16);
    config.large = Large::direct;
    const auto pool = open_pool(card, config);
    const StreamRef stream = card.stream(true);
    Holder holder(*pool, stream, 4);
    holder.listen();
    must_free(*pool, must_malloc(*pool, 4 * kMiB, stream));
    CHECK_EQUAL(holder.asked.size(), std::size_t{1});
    CHECK_EQUAL(holder.blocks.size(), std::size_t{3});
    holder.give(16 * kMiB);
}

TEST(a_callback_without_host_memory_has_none_to_give_and_is_asked_again) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef stream = card.stream(true), other = card.stream(true);
    Holder holder(*pool, stream, 4);
    int calls = 0;
    const std::uint64_t number = pool->shortage().add([&](std::uint64_t) -> std::uint64_t {
        ++calls;
        throw std::bad_alloc();
    });
    holder.listen();
    must_free(*pool, must_malloc(*pool, 4 * kMiB, other));  // by the next one
    CHECK_EQUAL(calls, 1);
    must_free(*pool, must_malloc(*pool, 8 * kMiB, other));
    CHECK_EQUAL(calls, 2);
    pool->shortage().remove(number);  // no call is under way
    must_free(*pool, must_malloc(*pool, 12 * kMiB, other));
    CHECK_EQUAL(calls, 2);
    holder.give(16 * kMiB);
}

TEST(other_exceptions_of_a_callback_leave_nothing_under_way) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    bool throws = true;
    const std::uint64_t number = pool->shortage().add([&](std::uint64_t bytes) {
        if (throws) throw std::runtime_error("a callback");
        return bytes;
    });
    bool thrown = false;
    try {
        pool->shortage().ask(1);
    } catch (const std::runtime_error&) {
        thrown = true;
    }
    CHECK(thrown);
    throws = false;
    CHECK_EQUAL(pool->shortage().ask(1), std::uint64_t{1});
    pool->shortage().remove(number);
    CHECK_EQUAL(pool->shortage().ask(1), std::uint64_t{0});
}

TEST(after_its_removal_a_callback_is_neither_called_nor_under_way) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef stream = card.stream(true), other = card.stream(true);
    Holder holder(*pool, stream, 4);
    std::promise<void> begun, go;
    std::atomic<bool> ended = false;
    int calls = 0;
    const std::uint64_t number = pool->shortage().add([&](std::uint64_t) -> std::uint64_t {
        if (calls++ == 0) begun.set_value();
        go.get_future().wait();
        ended = true;
        return 0;
    });
    auto asks = std::async(std::launch::async, [&] { CHECK(is_refused(*pool, 4 * kMiB, other)); });
    begun.get_future().wait();
    auto removes = std::async(std::launch::async, [&] {
        pool->shortage().remove(number);
        return ended.load();
    });
    go.set_value();
    CHECK(removes.get());
    asks.get();
    CHECK(is_refused(*pool, 4 * kMiB, stream));
    CHECK_EQUAL(calls, 1);
    pool->shortage().remove(number);  // unknown by now
    // One that removes itself.
    std::uint64_t own = 0;
    own = pool->shortage().add([&](std::uint64_t bytes) {
        pool->shortage().remove(own);
        return holder.give(bytes);
    });
    must_free(*pool, must_malloc(*pool, 4 * kMiB, stream));
    CHECK_EQUAL(holder.blocks.size(), std::size_t{3});
    holder.give(16 * kMiB);
}
