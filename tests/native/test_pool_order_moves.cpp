// The order of streams where memory moves: pieces are mapped a second time, and their old mappings
// stay until the work is done. Built with one rule broken at a time, like test_pool_order.cpp.
#include <vector>

#include "graphs.h"
#include "pool_bench.h"

using namespace bench;

// Later than its memory was taken: the pieces of a pool depend on its limit.
void set_limit(Pool& pool, std::uint64_t mebibytes) {
    Config config = pool.config();
    config.limit = mebibytes * kMiB;
    Failure why;
    CHECK(pool.configure(config, why));
}

TEST(memory_moves_in_the_order_of_its_stream_and_leaves_its_old_place_when_the_work_is_done) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    const auto pool = open_pool(card, config);
    const StreamRef stream = card.stream();
    std::vector<std::uint64_t> blocks, between;  // a piece each
    for (int i = 0; i < 4; ++i) {
        blocks.push_back(must_malloc(*pool, 4 * kMiB, stream));
        between.push_back(must_malloc(*pool, 4 * kMiB, stream));
    }
    set_limit(*pool, 32);
    card.occupy(stream);
    for (const std::uint64_t block : blocks) card.use(block, 4 * kMiB, stream);
    for (const std::uint64_t block : blocks) must_free(*pool, block);
    gpu::sim().reset_call_counts();
    const std::uint64_t joined = must_malloc(*pool, 12 * kMiB, stream);
    CHECK_EQUAL(card.calls("cuMemMap"), std::uint64_t{3});
    CHECK_EQUAL(card.calls("cuEventSynchronize"), std::uint64_t{0});
    card.use(joined, 12 * kMiB, stream);
    pool->step();
    CHECK_EQUAL(card.calls("cuMemUnmap"), std::uint64_t{0});
    CHECK_EQUAL(pool->check_invariants(), std::string());
    CHECK_EQUAL(card.call.cuStreamSynchronize(stream.handle), CUDA_SUCCESS);
    pool->step();
    CHECK_EQUAL(card.calls("cuMemUnmap"), std::uint64_t{3});
    must_free(*pool, joined);
    for (const std::uint64_t block : between) must_free(*pool, block);
    CHECK_EQUAL(pool->trim(true), 32 * kMiB);
    check_order(card);
}

namespace {

// Free memory of a busy stream in two places with a live block between: 12 MiB on three pieces, and
// 8 MiB that new addresses lie behind. The pool has no more.
struct Apart {
    explicit Apart(bool durable)
        : pool(open_pool(card, limited(0))), stream(card.stream(durable)), other(card.stream()) {
        front = must_malloc(*pool, 12 * kMiB, stream);
        between = must_malloc(*pool, 2 * kMiB, stream);
        back = must_malloc(*pool, 8 * kMiB, stream);
        set_limit(*pool, 22);
        CHECK_EQUAL(back, front + 14 * kMiB);
        card.occupy(stream);
        card.use(front, 12 * kMiB, stream);
        card.use(back, 8 * kMiB, stream);
        must_free(*pool, front);
        must_free(*pool, back);
    }
    // Pieces move behind the 8 MiB.
    void move(std::uint64_t bytes, int pieces) {
        moved = must_malloc(*pool, bytes, stream);
        CHECK_EQUAL(moved, back);
        CHECK_EQUAL(pool->stats().remapped_bytes, pieces * 4 * kMiB);
        CHECK_EQUAL(pool->stats().reserved, 22 * kMiB);
        card.use(moved, bytes, stream);
    }
    void use_on_other(std::uint64_t bytes) {
        const std::uint64_t block = must_malloc(*pool, bytes, other);
        card.use(block, bytes, other);
        must_free(*pool, block);
    }
    ~Apart() {
        must_free(*pool, moved);
        must_free(*pool, between);
        CHECK_EQUAL(pool->check_invariants(), std::string());
        check_order(card);
    }

    Card card;
    std::shared_ptr<Pool> pool;
    StreamRef stream, other;
    std::uint64_t front = 0, between = 0, back = 0, moved = 0;
};

}  // namespace

TEST(what_is_left_where_pieces_moved_away_stays_behind_its_fence) {
    for (const bool durable : {true, false}) {
        Apart apart(durable);
        apart.move(14 * kMiB, 2);
        apart.use_on_other(4 * kMiB);  // the third piece is what it can get
    }
}

TEST(what_is_left_of_memory_put_together_stays_behind_the_newest_fence) {
    for (const bool durable : {true, false}) {
        Apart apart(durable);
        apart.move(14 * kMiB, 2);
        apart.use_on_other(2 * kMiB);  // the best fit is the end of the second piece
    }
}

TEST(memory_moves_into_a_larger_block_only_when_its_work_is_done) {
    const Card card;
    Config config;
    config.limit = 8 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef first = card.stream(true), second = card.stream(true);
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(must_malloc(*pool, kPage, first));
    card.occupy(first);
    for (const std::uint64_t block : blocks) card.use(block, kPage, first);
    for (const std::uint64_t block : blocks) must_free(*pool, block);
    // No block of this class is there to wait for on the GPU.
    const std::uint64_t large = must_malloc(*pool, 8 * kMiB, second);
    card.use(large, 8 * kMiB, second);
    must_free(*pool, large);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(memory_of_a_capture_neither_moves_nor_serves_others_while_its_graph_lives) {
    const Card card;
    const auto pool = open_pool(card, limited(16));
    const StreamRef ordinary = card.stream(true), stream = card.stream(true);
    StreamRef captured = stream;
    CHECK_EQUAL(graphs::begin_capture(captured.handle), CUDA_SUCCESS);
    CHECK_EQUAL(identify(card.call, captured), CUDA_SUCCESS);
    std::vector<std::uint64_t> blocks;  // a piece each
    for (int i = 0; i < 4; ++i) {
        blocks.push_back(must_malloc(*pool, 4 * kMiB, captured));
        card.use(blocks.back(), 4 * kMiB, captured);
    }
    must_free(*pool, blocks[0], captured);
    must_free(*pool, blocks[2], captured);
    // The stream of the capture has them as they are; 8 MiB would have to be put together.
    Failure why;
    CHECK_EQUAL(pool->malloc(8 * kMiB, captured, true, why), std::uint64_t{0});
    CHECK(why.kind == Failure::Kind::out_of_memory);
    const std::uint64_t again = must_malloc(*pool, 4 * kMiB, captured);
    CHECK(again == blocks[0] || again == blocks[2]);
    must_free(*pool, again, captured);
    const CUgraphExec graph = graphs::end_and_instantiate(stream.handle);
    CHECK_EQUAL(graphs::launch(graph, stream.handle), CUDA_SUCCESS);
    for (const std::uint64_t bytes : {4 * kMiB, 8 * kMiB}) {
        CHECK_EQUAL(pool->malloc(bytes, ordinary, true, why), std::uint64_t{0});
        CHECK(why.kind == Failure::Kind::out_of_memory);
    }
    CHECK_EQUAL(pool->defragment(why), std::uint64_t{0});
    CHECK_EQUAL(pool->trim(true), std::uint64_t{0});
    CHECK_EQUAL(pool->stats().remapped_bytes, std::uint64_t{0});
    CHECK_EQUAL(graphs::launch(graph, stream.handle), CUDA_SUCCESS);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    // With its graph gone it is like any other.
    CHECK_EQUAL(card.call.cuStreamSynchronize(stream.handle), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::destroy(graph), CUDA_SUCCESS);
    gpu::sim().advance(kSecond);
    pool->step();
    const std::uint64_t large = must_malloc(*pool, 8 * kMiB, ordinary);
    card.use(large, 8 * kMiB, ordinary);
    CHECK_EQUAL(pool->stats().reserved, 16 * kMiB);
    CHECK(pool->stats().remapped_bytes > 0);
    must_free(*pool, large);
    must_free(*pool, blocks[1]);
    must_free(*pool, blocks[3]);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(an_old_mapping_of_a_raw_stream_goes_when_the_stream_was_given_again) {
    Apart apart(false);
    // The request cannot record the fence that the old mappings wait for.
    CHECK_EQUAL(gpu::sim().inject("cuEventRecord", 1, 1'000'000, CUDA_ERROR_UNKNOWN, 0), 0);
    apart.move(20 * kMiB, 3);  // all that the stream has
    gpu::sim().clear_faults();
    Pool& pool = *apart.pool;
    CHECK_EQUAL(apart.card.call.cuStreamSynchronize(apart.stream.handle), CUDA_SUCCESS);
    gpu::sim().reset_call_counts();
    pool.step();
    // Its handle may be invalid by now, so nobody knows that the work is done.
    CHECK_EQUAL(apart.card.calls("cuMemUnmap") + apart.card.calls("cuEventRecord"),
                std::uint64_t{0});
    Failure why;
    CHECK_EQUAL(pool.malloc(20 * kMiB, apart.stream, false, why), std::uint64_t{0});
    CHECK_EQUAL(apart.card.call.cuStreamSynchronize(apart.stream.handle), CUDA_SUCCESS);
    pool.step();
    CHECK_EQUAL(apart.card.calls("cuMemUnmap"), std::uint64_t{3});
}
