// The pool engine on the simulated GPU: counts, statistics, bad input.
#include "graphs.h"
#include "pool_bench.h"

using namespace bench;

TEST(a_block_freed_and_asked_for_again_on_its_stream_makes_no_driver_call) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    must_free(*pool, must_malloc(*pool, 4096, stream));
    gpu::sim().reset_call_counts();
    for (int i = 0; i < 1000; ++i) must_free(*pool, must_malloc(*pool, 4000, stream));
    // The two the pool makes for the checker are not the driver's.
    const std::string counts = gpu::text_of(gpu::sim().call_counts);
    CHECK_EQUAL(counts, std::string("{\"simBlockAlloc\":1000,\"simBlockFree\":1000}"));
}

TEST(bad_pointers_and_sizes_are_refused_and_change_nothing) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    const std::uint64_t address = must_malloc(*pool, 1000, stream);
    const auto refused = [&](std::uint64_t pointer, std::optional<std::uint64_t> bytes) {
        Failure why;
        return !pool->free(pointer, bytes, {}, why) && why.kind == Failure::Kind::bad_value;
    };
    CHECK(refused(0, {}));
    CHECK(refused(address + 8, {}));
    CHECK(refused(address, 999));
    CHECK(refused(address + 1024 * kMiB, {}));
    Failure why;
    CHECK(pool->free(address, 1000, {}, why));
    CHECK(refused(address, {}));
    CHECK_EQUAL(pool->malloc(0, stream, true, why), std::uint64_t{0});
    CHECK_EQUAL(pool->malloc(kLargestRequest + 1, stream, true, why), std::uint64_t{0});
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(a_pointer_into_a_joined_block_is_refused_wherever_parts_of_it_began) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true);
    const std::uint64_t first = must_malloc(*pool, 4 * kMiB, stream);
    const std::uint64_t second = must_malloc(*pool, 4 * kMiB, stream);
    CHECK_EQUAL(second, first + 4 * kMiB);
    must_free(*pool, first);
    must_free(*pool, second);
    const std::uint64_t whole = must_malloc(*pool, 8 * kMiB, stream);
    CHECK_EQUAL(whole, first);
    for (std::uint64_t inside = kSpan; inside < 8 * kMiB; inside += kSpan) {
        Failure why;
        CHECK(!pool->free(whole + inside, {}, {}, why));
        CHECK(why.kind == Failure::Kind::bad_value);
    }
    CHECK_EQUAL(pool->stats().current_usage, 8 * kMiB);
    must_free(*pool, whole);
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(statistics_add_up) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    const std::uint64_t a = must_malloc(*pool, 1000, stream);
    const std::uint64_t b = must_malloc(*pool, 3 * kMiB, stream);
    must_free(*pool, a);
    Stats stats = pool->stats();
    CHECK_EQUAL(stats.allocation_count, std::uint64_t{2});
    CHECK_EQUAL(stats.free_count, std::uint64_t{1});
    CHECK_EQUAL(stats.total_allocated, 1000 + 3 * kMiB);
    CHECK_EQUAL(stats.total_freed, std::uint64_t{1000});
    CHECK_EQUAL(stats.current_usage, 3 * kMiB);
    CHECK(stats.peak_usage >= 3 * kMiB);
    CHECK_EQUAL(stats.cache_hits + stats.cache_misses, std::uint64_t{2});
    pool->reset_stats();
    stats = pool->stats();
    CHECK_EQUAL(stats.allocation_count, std::uint64_t{0});
    CHECK_EQUAL(stats.current_usage, 3 * kMiB);
    must_free(*pool, b);
    CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
}

TEST(thread_and_stream_caches_of_streams_that_are_gone_do_not_pile_up) {
    const Card card;
    const auto pool = open_pool(card);
    for (int i = 0; i < 300; ++i) {
        const StreamRef stream = card.stream();
        const std::uint64_t address = must_malloc(*pool, 1000, stream);
        card.use(address, 1000, stream);
        must_free(*pool, address);
        card.close(stream);
        CHECK_EQUAL(card.call.cuCtxSynchronize(), CUDA_SUCCESS);
    }
    CHECK(pool->cache_count() <= 2);
    CHECK(pool->stream_cache_count() <= 2);
    CHECK_EQUAL(pool->stats().allocation_count, std::uint64_t{300});
    CHECK_EQUAL(pool->stats().events_recorded, std::uint64_t{300});
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(arenas_of_graphs_that_are_gone_do_not_pile_up) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true);
    for (int i = 0; i < 20; ++i) {
        StreamRef captured = stream;
        CHECK_EQUAL(graphs::begin_capture(captured.handle), CUDA_SUCCESS);
        CHECK_EQUAL(identify(card.call, captured), CUDA_SUCCESS);
        must_free(*pool, must_malloc(*pool, 1000, captured), captured);
        CHECK_EQUAL(pool->stream_cache_count(), std::size_t{1});
        CHECK_EQUAL(graphs::destroy(graphs::end_and_instantiate(captured.handle)), CUDA_SUCCESS);
        gpu::sim().advance(kSecond);
        pool->step();
        CHECK_EQUAL(pool->stream_cache_count(), std::size_t{0});
    }
}

TEST(a_stream_of_another_context_is_refused) {
    const Card card;
    const auto pool = open_pool(card);
    CUcontext other = nullptr;
    CHECK_EQUAL(card.call.cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    const StreamRef stream = card.stream();
    Failure why;
    CHECK_EQUAL(pool->malloc(1000, stream, true, why), std::uint64_t{0});
    CHECK(why.kind == Failure::Kind::bad_value);
    CHECK_EQUAL(card.call.cuCtxDestroy_v2(other), CUDA_SUCCESS);
}

TEST(after_a_reset_of_the_driver_nobody_gets_an_address_of_before) {
    for (const std::uint64_t kept : {0, 64}) {
        for (const std::uint64_t bytes : {std::uint64_t{4096}, 3 * kMiB}) {
            const Card card;
            Config config;
            config.thread_cache_max_blocks = kept;  // 0: on the stream cache
            const auto pool = open_pool(card, config);
            const StreamRef stream = card.stream(true);
            must_free(*pool, must_malloc(*pool, bytes, stream));
            announce_reset(card.call);
            CHECK_EQUAL(pool->malloc_cached(bytes, stream), std::uint64_t{0});
            Failure why;
            CHECK_EQUAL(pool->malloc(bytes, stream, true, why), std::uint64_t{0});
            CHECK(why.kind == Failure::Kind::closed);
        }
    }
}

TEST(numbers_of_streams_that_ended_are_used_again) {
    const Card card("checker=off,data=off,capacity=1GiB");
    const auto pool = open_pool(card);
    const StreamRef lasting = card.stream(true);
    const std::uint64_t kept = must_malloc(*pool, 4096, lasting);
    std::vector<std::uint64_t> left;
    for (int i = 0; i < 5000; ++i) {
        const StreamRef stream = card.stream(true);
        const std::uint64_t block = must_malloc(*pool, 4096, stream);
        if (i % 1000 == 0) {
            left.push_back(block);  // its stream's number stays known
        } else {
            must_free(*pool, block);
        }
        card.close(stream);
    }
    CHECK(pool->layout().streams.size() <= 1100);
    CHECK_EQUAL(pool->cache_count(), std::size_t{2});  // the first, and of the last that ended
    for (const std::uint64_t block : left) must_free(*pool, block);
    must_free(*pool, kept);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
}
