// The memory of a pool: how it grows, which pieces move and where to, and memory that never moves.
#include <vector>

#include "pool_bench.h"

using namespace bench;

namespace {

struct Memory {
    explicit Memory(const Config& config = {}) {
        Failure why;
        REQUIRE(memory.open(config, why));
        stream = std::make_shared<StreamCache>(events, memory.ranges(), 0, card.stream(true));
    }
    ~Memory() {
        memory.give_everything_back();
        stream = nullptr;
        events.drop();
        check_order(card);
        check_nothing_left();
    }
    BlockRef make(std::uint64_t bytes, bool own = false,
                  DeviceMemory::Thrift thrift = DeviceMemory::Thrift::must) {
        Failure why;
        const DeviceMemory::Made made =
            memory.make_range(bytes, own ? stream : nullptr, thrift, why);
        REQUIRE(made.block.slab != nullptr);
        made.block.block().set(State::live, 0, 0);
        return made.block;
    }
    std::vector<std::uint64_t> pieces() const {  // MiB
        std::vector<std::uint64_t> sizes;
        memory.pieces().each([&](const Extent& piece) { sizes.push_back(piece.bytes / kMiB); });
        return sizes;
    }
    std::string check() const {
        std::vector<Extent> used;
        memory.ranges().each([&](const Slab& range) { used.push_back(range.extent()); });
        std::ranges::sort(used, {}, &Extent::address);
        return memory.pieces().check(used);
    }

    Card card{"checker=on,data=off,capacity=1GiB"};
    DeviceContext context{simulated(), 0, card.context, 1024 * kMiB};
    Stats counters;
    DeviceMemory memory{context, counters};
    EventPool events{card.call};
    std::shared_ptr<StreamCache> stream;
};

using Sizes = std::vector<std::uint64_t>;

}  // namespace

TEST(growth_takes_what_is_needed_in_whole_pages_and_pieces_of_a_part_of_it) {
    {
        Memory bench;
        bench.make(kSpan);  // one page, for the next small requests too
        CHECK(bench.pieces() == (Sizes{2}));
        CHECK_EQUAL(bench.memory.idle().bytes(), kPage - kSpan);
    }
    {
        Memory bench;
        bench.make(29 * kMiB);
        CHECK(bench.pieces() == (Sizes{4, 4, 4, 4, 4, 4, 4, 2}));
        CHECK_EQUAL(bench.counters.device_growths, std::uint64_t{1});
    }
    Memory bench;
    bench.make(640 * kMiB);
    CHECK(bench.pieces() == Sizes(160, 4));  // more than a 512th of the card are too large
    bench.make(3 * kMiB);
    CHECK_EQUAL(bench.pieces().back(), std::uint64_t{4});
    CHECK_EQUAL(bench.memory.reserved(), 644 * kMiB);
    CHECK_EQUAL(bench.check(), std::string());
}

TEST(free_memory_with_addresses_behind_it_is_lengthened_where_it_is) {
    for (const bool own : {true, false}) {
        Memory bench;
        const BlockRef first = bench.make(4 * kMiB), last = bench.make(5 * kMiB);
        CHECK_EQUAL(last.address(), first.address() + 4 * kMiB);
        if (own) {
            bench.stream->put(last);
            bench.memory.join_idle_to(*bench.stream);  // the rest of the last page
        } else {
            bench.memory.give_idle(last);
        }
        gpu::sim().reset_call_counts();
        const BlockRef made = bench.make(11 * kMiB, own);
        CHECK_EQUAL(made.address(), last.address());
        CHECK_EQUAL(bench.memory.reserved(), 16 * kMiB);
        CHECK_EQUAL(bench.counters.remapped_bytes, std::uint64_t{0});
        CHECK_EQUAL(bench.card.calls("cuMemUnmap"), std::uint64_t{0});
        CHECK_EQUAL(bench.check(), std::string());
    }
}

TEST(idle_pieces_move_before_those_of_the_stream_and_both_before_growth) {
    Memory bench;
    std::vector<BlockRef> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(bench.make(4 * kMiB));
    bench.memory.give_idle(blocks[0]);
    bench.memory.give_idle(blocks[2]);
    bench.stream->put(blocks[4]);
    bench.stream->put(blocks[6]);
    bench.make(8 * kMiB, true);
    CHECK_EQUAL(bench.memory.idle().bytes(), std::uint64_t{0});
    CHECK_EQUAL(bench.stream->ranges.bytes(), 8 * kMiB);
    CHECK_EQUAL(bench.memory.reserved(), 32 * kMiB);
    // Without leave to move the stream's memory, it grows.
    bench.make(6 * kMiB);
    CHECK_EQUAL(bench.memory.reserved(), 38 * kMiB);
    bench.make(12 * kMiB, true);
    CHECK_EQUAL(bench.stream->ranges.bytes(), std::uint64_t{0});
    CHECK_EQUAL(bench.memory.reserved(), 42 * kMiB);
    CHECK_EQUAL(bench.counters.remapped_bytes, 16 * kMiB);
    CHECK_EQUAL(bench.check(), std::string());
}

TEST(pieces_move_as_far_as_it_is_wanted_or_no_new_memory_may_be_taken) {
    using Thrift = DeviceMemory::Thrift;
    for (const bool limited : {false, true}) {
        for (const Thrift thrift : {Thrift::none, Thrift::must}) {
            Config config;
            if (limited) config.limit = 16 * kMiB;
            Memory bench(config);
            std::vector<BlockRef> blocks;
            for (int i = 0; i < 4; ++i) blocks.push_back(bench.make(4 * kMiB));
            bench.memory.give_idle(blocks[0]);
            bench.memory.give_idle(blocks[2]);
            bench.make(8 * kMiB, true, thrift);
            const bool moves = limited || thrift == Thrift::must;
            CHECK_EQUAL(bench.counters.remapped_bytes, moves ? 8 * kMiB : 0);
            CHECK_EQUAL(bench.memory.reserved(), (moves ? 16 : 24) * kMiB);
            CHECK_EQUAL(bench.check(), std::string());
        }
    }
}

TEST(addresses_left_behind_by_moves_are_used_again) {
    Memory bench;
    std::vector<BlockRef> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(bench.make(4 * kMiB));
    const std::uint64_t base = bench.memory.addresses().base();
    std::uint64_t highest = 0;
    for (int round = 0; round < 300; ++round) {
        for (std::size_t i = 0; i < blocks.size(); i += 2) bench.memory.give_idle(blocks[i]);
        const BlockRef joined = bench.make(16 * kMiB);
        highest = std::max(highest, joined.slab->extent().end() - base);
        bench.memory.give_idle(joined);
        for (std::size_t i = 0; i < blocks.size(); i += 2) {
            blocks[i] = bench.memory.take_idle_range(4 * kMiB);
            // Something lies behind each again.
            std::swap(blocks[i], blocks[i + 1]);
        }
        bench.memory.unmap_all_old();
    }
    CHECK_EQUAL(bench.memory.reserved(), 32 * kMiB);
    CHECK(bench.counters.remapped_bytes > 500 * kMiB);
    CHECK(highest <= 128 * kMiB);
    CHECK_EQUAL(bench.check(), std::string());
}

// Without the pool there is no thread, so whatever is unmapped here is unmapped by the request.
TEST(requests_unmap_old_mappings_only_where_no_background_thread_does) {
    for (const bool background : {true, false}) {
        Config config;
        config.background = background;
        Memory bench(config);
        std::vector<BlockRef> blocks;
        for (int i = 0; i < 16; ++i) blocks.push_back(bench.make(4 * kMiB));
        gpu::sim().reset_call_counts();
        for (std::size_t first = 0; first < blocks.size(); first += 4) {
            bench.memory.give_idle(blocks[first]);
            bench.memory.give_idle(blocks[first + 2]);
            bench.make(8 * kMiB);
        }
        CHECK_EQUAL(bench.counters.remapped_bytes, 32 * kMiB);
        // Those of the last request are for the next one.
        CHECK_EQUAL(bench.card.calls("cuMemUnmap"), std::uint64_t{background ? 0u : 6u});
        CHECK(bench.memory.unmap_old());  // as the thread does
        CHECK_EQUAL(bench.card.calls("cuMemUnmap"), std::uint64_t{8});
        CHECK_EQUAL(bench.check(), std::string());
    }
}

// The background thread may sleep for seconds.
TEST(requests_unmap_old_mappings_too_when_the_background_thread_leaves_many) {
    Config config;
    config.limit = 64 * kMiB;
    Memory bench(config);
    std::vector<BlockRef> blocks;  // on a piece each
    for (int i = 0; i < 32; ++i) blocks.push_back(bench.make(kPage));
    gpu::sim().reset_call_counts();
    const auto old_mappings = [&] { return bench.memory.pieces().old_mappings(); };
    std::size_t most = 0;
    for (int round = 0; round < 100; ++round) {
        for (std::size_t i = 0; i < blocks.size(); i += 2) bench.memory.give_idle(blocks[i]);
        bench.memory.take_step_wanted();
        bench.memory.give_idle(bench.make(32 * kMiB));
        CHECK_EQUAL(bench.memory.take_step_wanted(), old_mappings() > 64);
        for (std::size_t i = 0; i < blocks.size(); i += 2) {
            blocks[i] = bench.memory.take_idle_range(kPage);
            std::swap(blocks[i], blocks[i + 1]);
        }
        if (most < 240) CHECK_EQUAL(bench.card.calls("cuMemUnmap"), std::uint64_t{0});
        most = std::max(most, old_mappings());
    }
    CHECK(most > 240 && most < 300);
    CHECK_EQUAL(bench.check(), std::string());
}

TEST(memory_that_is_taken_at_once_is_idle_and_never_moves_or_goes) {
    Config config;
    config.nvtx = true;
    config.limit = 32 * kMiB;
    Memory bench(config);
    CHECK_EQUAL(bench.memory.reserved(), 32 * kMiB);
    CHECK_EQUAL(bench.memory.idle().bytes(), 32 * kMiB);
    gpu::sim().reset_call_counts();
    std::vector<BlockRef> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(bench.memory.take_idle_range(4 * kMiB));
    for (std::size_t i = 0; i < blocks.size(); i += 2) bench.memory.give_idle(blocks[i]);
    Failure why;
    CHECK(bench.memory.make_range(8 * kMiB, bench.stream, DeviceMemory::Thrift::must, why)
              .block.slab == nullptr);
    CHECK(why.kind == Failure::Kind::out_of_memory);
    why = {};
    CHECK_EQUAL(bench.memory.join_idle(why), std::uint64_t{0});
    CHECK_EQUAL(bench.memory.release_idle(DeviceMemory::kAnyTime), std::uint64_t{0});
    CHECK(bench.memory.unmap_old());
    for (std::size_t i = 1; i < blocks.size(); i += 2) bench.memory.give_idle(blocks[i]);
    CHECK_EQUAL(bench.memory.take_idle_range(32 * kMiB).address(), bench.memory.addresses().base());
    CHECK_EQUAL(gpu::text_of(gpu::sim().call_counts), std::string("{}"));
    CHECK_EQUAL(bench.check(), std::string());
}
