// The order of streams, kept by the engine and watched by the checker: one sequence for each rule,
// and threads and streams in random order. The same program is built with one rule broken at a
// time (broken_rules): the checker must then report.
#include <future>
#include <thread>
#include <vector>

#include "graphs.h"
#include "pool_bench.h"
#include "random_order.h"

using namespace bench;

// Takes blocks on a stream and uses them: one that it should not have is a report.
void take_many(const Card& card, Pool& pool, std::uint64_t bytes, const StreamRef& stream) {
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 20; ++i) {
        blocks.push_back(must_malloc(pool, bytes, stream));
        card.use(blocks.back(), bytes, stream);
    }
    for (const std::uint64_t block : blocks) must_free(pool, block);
}

TEST(another_stream_gets_a_block_only_behind_its_fence) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;  // every free spills
    config.batch_alloc_count = 1;
    config.limit = 2 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef first = card.stream(), second = card.stream();
    const std::uint64_t bytes = kPage;
    const std::uint64_t address = must_malloc(*pool, bytes, first);
    card.occupy(first);
    card.use(address, bytes, first);
    must_free(*pool, address);
    // The work is still under way, and there is no other memory: the stream has to wait for it.
    const std::uint64_t again = must_malloc(*pool, bytes, second);
    CHECK_EQUAL(again, address);
    CHECK_EQUAL(card.calls("cuStreamWaitEvent"), std::uint64_t{1});
    card.use(again, bytes, second);
    must_free(*pool, again);
    check_order(card);
}

TEST(what_is_left_of_a_block_that_was_split_stays_behind_its_fence) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    const auto pool = open_pool(card, config);
    const StreamRef first = card.stream(), second = card.stream();
    const std::uint64_t whole = must_malloc(*pool, 32 * kMiB, first);
    card.occupy(first);
    card.use(whole, 32 * kMiB, first);
    must_free(*pool, whole);
    const std::uint64_t front = must_malloc(*pool, 16 * kMiB, first);
    CHECK_EQUAL(front, whole);
    const std::uint64_t other = must_malloc(*pool, 16 * kMiB, second);
    card.use(other, 16 * kMiB, second);
    CHECK(other != whole + 16 * kMiB);
    must_free(*pool, front);
    must_free(*pool, other);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(what_is_left_of_blocks_that_were_joined_stays_behind_their_marks) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    const auto pool = open_pool(card, config);
    const StreamRef first = card.stream(), second = card.stream();
    const std::uint64_t left = must_malloc(*pool, 16 * kMiB, first);
    const std::uint64_t right = must_malloc(*pool, 16 * kMiB, first);
    CHECK_EQUAL(right, left + 16 * kMiB);
    card.occupy(first);
    card.use(left, 16 * kMiB, first);
    card.use(right, 16 * kMiB, first);
    must_free(*pool, left);
    must_free(*pool, right);
    const std::uint64_t joined = must_malloc(*pool, 24 * kMiB, first);
    CHECK_EQUAL(joined, left);
    const std::uint64_t other = must_malloc(*pool, 8 * kMiB, second);
    card.use(other, 8 * kMiB, second);
    CHECK(other != left + 24 * kMiB);
    must_free(*pool, joined);
    must_free(*pool, other);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(idle_memory_joined_with_that_of_a_stream_waits_for_the_streams_work) {
    const Card card;
    const auto pool = open_pool(card, limited(8));
    const StreamRef stream = card.stream(), other = card.stream(true);
    const std::uint64_t idle = must_malloc(*pool, 4 * kMiB, other);
    const std::uint64_t own = must_malloc(*pool, 4 * kMiB, stream);
    CHECK_EQUAL(own, idle + 4 * kMiB);
    must_free(*pool, idle);
    card.occupy(stream);
    card.use(own, 4 * kMiB, stream);
    must_free(*pool, own, stream);
    const std::uint64_t joined = must_malloc(*pool, 6 * kMiB, stream);
    CHECK_EQUAL(joined, idle);
    CHECK_EQUAL(pool->stats().remapped_bytes, std::uint64_t{0});
    card.use(joined, 6 * kMiB, stream);
    // The end of what the stream had freed.
    const std::uint64_t rest = must_malloc(*pool, 2 * kMiB, other);
    CHECK_EQUAL(rest, idle + 6 * kMiB);
    card.use(rest, 2 * kMiB, other);
    must_free(*pool, rest);
    must_free(*pool, joined);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(blocks_of_a_slab_on_memory_of_a_stream_stay_behind_its_fence) {
    for (const bool durable : {true, false}) {
        const Card card;
        const auto pool = open_pool(card, limited(2));
        const StreamRef stream = card.stream(durable), other = card.stream();
        const std::uint64_t whole = must_malloc(*pool, kPage, stream);
        card.occupy(stream);
        card.use(whole, kPage, stream);
        must_free(*pool, whole, stream);
        // The stream has its memory at once, in order.
        const std::uint64_t small = must_malloc(*pool, 4096, stream);
        CHECK(small >= whole && small < whole + kPage);
        CHECK_EQUAL(pool->stats().slabs, std::uint64_t{1});
        CHECK_EQUAL(card.calls("cuStreamWaitEvent") + card.calls("cuEventSynchronize"),
                    std::uint64_t{0});
        card.use(small, 4096, stream);
        take_many(card, *pool, 4096, other);
        must_free(*pool, small);
        CHECK_EQUAL(pool->check_invariants(), std::string());
        check_order(card);
    }
}

TEST(a_stream_may_be_destroyed_when_the_pool_is_told) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(), other = card.stream();
    const std::uint64_t address = must_malloc(*pool, 5 * kMiB, stream);
    card.use(address, 5 * kMiB, stream);
    must_free(*pool, address);
    card.close(stream);
    CHECK_EQUAL(card.call.cuCtxSynchronize(), CUDA_SUCCESS);
    const std::uint64_t again = must_malloc(*pool, 5 * kMiB, other);
    CHECK_EQUAL(again, address);
    must_free(*pool, again);
    check_order(card);
}

TEST(a_block_freed_after_its_stream_was_destroyed_waits_for_that_streams_work) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef gone = card.stream();
    const std::uint64_t address = must_malloc(*pool, kPage, gone);
    card.occupy(gone);
    card.use(address, kPage, gone);
    card.close(gone);
    const StreamRef next = card.stream();  // may have the handle of the one that is gone
    must_free(*pool, address);
    const std::uint64_t other = must_malloc(*pool, kPage, next);
    CHECK(other != address);
    card.use(other, kPage, next);
    CHECK_EQUAL(pool->trim(false), std::uint64_t{0});
    CHECK_EQUAL(pool->trim(true), kPage);
    must_free(*pool, other);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(blocks_freed_before_their_stream_ends_wait_for_its_last_work) {
    for (const bool durable : {true, false}) {
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef gone = card.stream(durable), next = card.stream();
        const std::uint64_t address = must_malloc(*pool, kPage, gone);
        card.occupy(gone);
        card.use(address, kPage, gone);
        must_free(*pool, address);
        card.close(gone);
        const std::uint64_t other = must_malloc(*pool, kPage, next);
        CHECK(other != address);
        card.use(other, kPage, next);
        must_free(*pool, other);
        check_order(card);
    }
}

TEST(memory_goes_back_to_the_driver_only_when_its_work_is_done) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true);
    const std::uint64_t address = must_malloc(*pool, 4 * kMiB, stream);
    card.occupy(stream);
    card.use(address, 4 * kMiB, stream);
    must_free(*pool, address);
    CHECK_EQUAL(pool->trim(false), std::uint64_t{0});
    gpu::sim().advance(2 * kSecond);
    CHECK_EQUAL(pool->trim(false), 4 * kMiB);
    check_order(card);
}

TEST(a_block_freed_on_another_stream_is_that_streams) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef first = card.stream(), second = card.stream();
    for (const std::uint64_t bytes : {std::uint64_t{4096}, 3 * kMiB}) {
        const std::uint64_t address = must_malloc(*pool, bytes, first);
        card.use(address, bytes, first);
        card.order(first, second);
        card.occupy(second);
        card.use(address, bytes, second);
        must_free(*pool, address, second);
        const std::uint64_t other = must_malloc(*pool, bytes, first);
        CHECK(other != address);
        card.use(other, bytes, first);
        CHECK_EQUAL(must_malloc(*pool, bytes, second), address);
        card.use(address, bytes, second);
        must_free(*pool, address);
        must_free(*pool, other);
    }
    check_order(card);
}

TEST(of_two_streams_with_one_handle_the_block_is_that_of_its_own) {
    const Card card;
    const auto pool = open_pool(card);
    const auto default_here = [&] {
        CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
        StreamRef stream{VRAMKIT_STREAM_PER_THREAD};
        CHECK_EQUAL(identify(card.call, stream), CUDA_SUCCESS);
        return stream;
    };
    const StreamRef stream = default_here();
    const std::uint64_t address = must_malloc(*pool, 3 * kMiB, stream);
    card.occupy(stream);
    card.use(address, 3 * kMiB, stream);
    std::thread([&] {
        const StreamRef current = default_here();
        CHECK(current.handle == stream.handle && current.id != stream.id);
        Failure why;
        CHECK(pool->free_beside(address, current, why));
        take_many(card, *pool, 3 * kMiB, current);
    }).join();
    check_order(card);
}

TEST(a_stream_that_is_used_after_it_was_announced_keeps_its_order) {
    for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const bool known_here = (variant & 1) != 0, taken_here = (variant & 2) != 0;
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef stream = card.stream(false), other = card.stream(true);
        const auto take = [&](bool here) {
            const auto malloc = [&] {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                return must_malloc(*pool, 3 * kMiB, stream);
            };
            return here ? malloc() : std::async(std::launch::async, malloc).get();
        };
        const std::uint64_t before = take(known_here);
        card.occupy(stream);
        announce_stream_closing(card.call, stream.id, stream.handle);
        const std::uint64_t address = take(taken_here);
        must_free(*pool, before);  // to a cache of what has ended
        card.occupy(stream);
        card.use(address, 3 * kMiB, stream);
        must_free(*pool, address, (variant & 4) != 0 ? std::optional(stream) : std::nullopt);
        gpu::sim().advance(1.5 * kSecond);  // what was announced is done, the later use is not
        take_many(card, *pool, 3 * kMiB, other);
        CHECK_EQUAL(pool->check_invariants(), std::string());
        check_order(card);
    }
}

TEST(what_is_handed_out_in_a_capture_is_the_graphs_while_it_lives) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef ordinary = card.stream(true), launched_on = card.stream(true);
    StreamRef captured = card.stream(true);
    for (const std::uint64_t bytes : {std::uint64_t{4096}, 3 * kMiB}) {
        // Caches of this thread for all three, so that nothing is done for the first time below.
        for (const StreamRef& stream : {ordinary, launched_on}) {
            must_free(*pool, must_malloc(*pool, bytes, stream));
        }
        CHECK_EQUAL(graphs::begin_capture(captured.handle), CUDA_SUCCESS);
        CHECK_EQUAL(identify(card.call, captured), CUDA_SUCCESS);
        const std::uint64_t address = must_malloc(*pool, bytes, captured);
        card.use(address, bytes, captured);
        const CUgraphExec graph = graphs::end_and_instantiate(captured.handle);
        CHECK_EQUAL(graphs::launch(graph, launched_on.handle), CUDA_SUCCESS);
        must_free(*pool, address, ordinary);
        // That use is over; the graph is not.
        CHECK_EQUAL(card.call.cuStreamSynchronize(ordinary.handle), CUDA_SUCCESS);
        pool->step();
        std::vector<std::uint64_t> blocks;
        for (int i = 0; i < 40; ++i) {
            blocks.push_back(must_malloc(*pool, bytes, ordinary));
            CHECK(blocks.back() != address);
            card.use(blocks.back(), bytes, ordinary);
        }
        CHECK_EQUAL(pool->stats().captures, std::uint64_t{1});
        for (const std::uint64_t block : blocks) must_free(*pool, block);
        CHECK_EQUAL(graphs::destroy(graph), CUDA_SUCCESS);
        gpu::sim().advance(kSecond);
        pool->trim(true);
        CHECK_EQUAL(pool->stats().captures, std::uint64_t{0});
        CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    }
    check_order(card);
}

// A graph that sets a block of its own, and the block.
struct Captured {
    Captured(const Card& card, Pool& pool, StreamRef stream, std::uint64_t bytes) {
        CHECK_EQUAL(graphs::begin_capture(stream.handle), CUDA_SUCCESS);
        CHECK_EQUAL(identify(card.call, stream), CUDA_SUCCESS);
        address = must_malloc(pool, bytes, stream);
        card.use(address, bytes, stream);
        graph = graphs::end_and_instantiate(stream.handle);
    }
    std::uint64_t address = 0;
    CUgraphExec graph = nullptr;
};

TEST(a_lent_block_is_held_until_the_other_stream_is_past) {
    for (const bool durable : {true, false}) {
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef owner = card.stream(true), other = card.stream(durable);
        const std::uint64_t address = must_malloc(*pool, 3 * kMiB, owner);
        card.order(owner, other);
        Failure why;
        CHECK(pool->also_used_on(address, other, why));
        card.occupy(other);
        card.use(address, 3 * kMiB, other);
        must_free(*pool, address);
        pool->step();
        CHECK_EQUAL(pool->stats().waiting, 4 * kMiB);
        take_many(card, *pool, 3 * kMiB, owner);
        gpu::sim().advance(2 * kSecond);
        pool->trim(true);
        CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
        check_order(card);
    }
}

TEST(a_block_lent_to_a_raw_stream_that_is_gone_comes_back_with_a_wait_for_the_card) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef owner = card.stream(true), other = card.stream(false);
    const std::uint64_t address = must_malloc(*pool, 3 * kMiB, owner);
    Failure why;
    CHECK(pool->also_used_on(address, other, why));
    CHECK_EQUAL(card.call.cuStreamDestroy_v2(other.handle), CUDA_SUCCESS);
    gpu::sim().reset_call_counts();
    must_free(*pool, address);
    pool->step();
    CHECK_EQUAL(card.calls("cuStreamIsCapturing") + card.calls("cuEventRecord"), std::uint64_t{0});
    CHECK_EQUAL(pool->trim(true), 4 * kMiB);
    check_order(card);
}

TEST(a_graphs_block_freed_outside_waits_for_that_use) {
    for (const bool destroyed_first : {false, true}) {
        for (const bool given : {false, true}) {
            const Card card;
            const auto pool = open_pool(card);
            const StreamRef stream = card.stream(true), other = card.stream(true);
            const Captured captured(card, *pool, stream, 3 * kMiB);
            CHECK_EQUAL(graphs::launch(captured.graph, stream.handle), CUDA_SUCCESS);
            if (destroyed_first) {
                CHECK_EQUAL(graphs::destroy(captured.graph), CUDA_SUCCESS);
                gpu::sim().advance(kSecond);
                pool->step();
            }
            card.occupy(stream);
            card.use(captured.address, 3 * kMiB, stream);
            must_free(*pool, captured.address, given ? std::optional(stream) : std::nullopt);
            if (!destroyed_first) CHECK_EQUAL(graphs::destroy(captured.graph), CUDA_SUCCESS);
            pool->step();
            take_many(card, *pool, 3 * kMiB, other);
            pool->trim(false);
            gpu::sim().advance(3 * kSecond);
            pool->step();
            pool->trim(true);
            CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
            check_order(card);
        }
    }
}

TEST(a_graphs_block_freed_when_its_stream_is_no_more_waits_for_the_card) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true);
    const Captured captured(card, *pool, stream, 3 * kMiB);
    CHECK_EQUAL(graphs::launch(captured.graph, stream.handle), CUDA_SUCCESS);
    card.close(stream);
    gpu::sim().reset_call_counts();
    must_free(*pool, captured.address);
    CHECK_EQUAL(card.calls("cuStreamIsCapturing"), std::uint64_t{0});
    CHECK_EQUAL(graphs::destroy(captured.graph), CUDA_SUCCESS);
    gpu::sim().advance(kSecond);
    pool->step();
    CHECK_EQUAL(pool->stats().waiting, 3 * kMiB);
    pool->trim(true);
    CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    check_order(card);
}

TEST(a_plain_block_freed_inside_a_capture_is_its_streams_when_the_graph_is_gone) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true), other = card.stream(true);
    const std::uint64_t address = must_malloc(*pool, 3 * kMiB, stream);
    card.occupy(stream);
    card.use(address, 3 * kMiB, stream);
    StreamRef capturing = stream;
    CHECK_EQUAL(graphs::begin_capture(stream.handle), CUDA_SUCCESS);
    CHECK_EQUAL(identify(card.call, capturing), CUDA_SUCCESS);
    must_free(*pool, address, capturing);
    const std::uint64_t inside = must_malloc(*pool, 3 * kMiB, capturing);
    CHECK(inside != address);
    card.use(inside, 3 * kMiB, capturing);
    const CUgraphExec graph = graphs::end_and_instantiate(stream.handle);
    CHECK_EQUAL(graphs::launch(graph, other.handle), CUDA_SUCCESS);
    take_many(card, *pool, 3 * kMiB, other);
    must_free(*pool, inside);
    CHECK_EQUAL(graphs::destroy(graph), CUDA_SUCCESS);
    pool->step();
    take_many(card, *pool, 3 * kMiB, other);
    gpu::sim().advance(3 * kSecond);
    pool->step();
    pool->trim(true);
    CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    check_order(card);
}

TEST(what_is_freed_while_another_thread_waits_for_the_card_is_not_taken_for_done) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;  // every free spills
    const auto pool = open_pool(card, config);
    const StreamRef raw = card.stream(false), durable = card.stream(true);
    const std::uint64_t early = must_malloc(*pool, kPage, raw);
    const std::uint64_t late_raw = must_malloc(*pool, kPage, raw);
    const std::uint64_t late_durable = must_malloc(*pool, kPage, durable);
    card.use(early, kPage, raw);
    // Without a fence: only a device sync helps.
    CHECK_EQUAL(gpu::sim().inject("cuEventRecord", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    must_free(*pool, early);
    Gate gate(card, raw);
    std::future<std::uint64_t> released =
        std::async(std::launch::async, [&] { return pool->trim(true); });
    wait_for_call(card, "cuMemFree_v2", released);
    card.occupy(raw);
    card.use(late_raw, kPage, raw);
    must_free(*pool, late_raw);
    card.occupy(durable);
    card.use(late_durable, kPage, durable);
    must_free(*pool, late_durable);
    gate.open();
    CHECK_EQUAL(released.get(), kPage);
    CHECK_EQUAL(pool->trim(true), 2 * kPage);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(what_is_freed_while_another_thread_waits_for_the_stream_is_not_taken_for_done) {
    const Card card;
    Config config;
    config.cache_bytes = kMiB;  // every free of a page gets its fence
    const auto pool = open_pool(card, config);
    const StreamRef stream = card.stream(false);
    const std::uint64_t early = must_malloc(*pool, kPage, stream);
    std::vector<std::uint64_t> late(20);
    for (std::uint64_t& block : late) block = must_malloc(*pool, kPage, stream);
    card.use(early, kPage, stream);
    Gate gate(card, stream);
    must_free(*pool, early, stream);
    std::future<std::uint64_t> released =
        std::async(std::launch::async, [&] { return pool->trim(true); });
    wait_for_call(card, "cuEventSynchronize", released);
    card.occupy(stream);
    for (const std::uint64_t block : late) {
        card.use(block, kPage, stream);
        must_free(*pool, block, stream);
    }
    CHECK(card.calls("cuEventQuery") > 0);  // so that unqueried fences do not pile up
    gate.open();
    CHECK(released.get() >= kPage);
    pool->trim(true);
    CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(threads_and_streams_in_random_order_never_break_the_order) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 4;
    config.batch_alloc_count = 3;
    config.decay_ms = 1;
    config.limit = 48 * kMiB;
    {
        const auto pool = open_pool(card, config);
        // Until it has been short and every tier was used. Threads that hurry do not ask other
        // streams, so that every other turn has one thread.
        const auto used_all = [&] {
            const Stats stats = pool->stats();
            return stats.cross_stream_hits > 0 && stats.gpu_wait_hits > 0 && stats.remap_hits > 0;
        };
        for (int turn = 0; turn < 40 && !used_all() && testing::failures_in_test() == 0; ++turn) {
            random_order::run(card, *pool, turn % 2 == 0 ? 4 : 1, testing::rounds(25, 250));
            CHECK_EQUAL(pool->check_invariants(), std::string());
            CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
            // What raw streams freed last has no fence: the next turn would lack that memory.
            pool->trim(true);
            CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
        }
        CHECK(used_all());
    }
    check_order(card);
    check_nothing_left();
}
