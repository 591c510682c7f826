// Slabs: equal blocks on a range, found by address, handed out and taken back.
#include "pool/blocks/slabs.h"

#include <set>

#include "testing.h"

using namespace vramkit;
using namespace vramkit::pool;

namespace {

constexpr std::uint64_t kBase = std::uint64_t{1} << 40;

struct Bench {
    std::unique_ptr<PageMap> pages = PageMap::over(kBase, 64 * kPage);
    Slabs slabs{*pages};

    static Extent extent(std::uint64_t page, std::uint64_t bytes) {
        return {kBase + page * kPage, bytes};
    }
    std::vector<BlockRef> take(ClassIndex index, std::size_t count) {
        std::vector<BlockRef> blocks;
        while (blocks.size() < count) {
            blocks.push_back(slabs.take(index));
            REQUIRE(blocks.back().slab != nullptr);
            blocks.back().block().set(State::live, 0, 1);
        }
        return blocks;
    }
};

}  // namespace

TEST(every_block_of_every_class_is_found_by_its_address) {
    for (ClassIndex index = 0; index < kFirstRange; ++index) {
        for (const std::uint64_t count : {std::uint64_t{1}, kPage / kUnit}) {
            Bench bench;
            const Extent extent = Bench::extent(3, slab_bytes(index, count));
            Slab& slab = bench.slabs.make(index, extent);
            const std::uint64_t bytes = class_bytes(index);
            CHECK_EQUAL(slab.count, extent.bytes / bytes);
            for (std::uint64_t at = 0; at < extent.bytes; at += kUnit) {
                REQUIRE(bench.pages->slab_of(extent.address + at) == &slab);
                REQUIRE(slab.number_at(at) == at / bytes);
                REQUIRE(slab.number_at(at + kUnit - 1) == at / bytes);
            }
            CHECK(bench.pages->slab_of(extent.address - 1) == nullptr);
            CHECK(bench.pages->slab_of(extent.end()) == nullptr);
        }
    }
}

TEST(blocks_are_handed_out_from_the_lowest_and_each_once) {
    Bench bench;
    const ClassIndex index = fine_class_of(5000);
    const Extent extent = Bench::extent(0, slab_bytes(index, 30));
    Slab& slab = bench.slabs.make(index, extent);
    CHECK_EQUAL(bench.slabs.idle_blocks(index), std::size_t{slab.count});
    const auto blocks = bench.take(index, slab.count);
    for (std::uint32_t i = 0; i < slab.count; ++i) {
        CHECK_EQUAL(blocks[i].address(), extent.address + i * class_bytes(index));
        CHECK_EQUAL(blocks[i].bytes(), class_bytes(index));
    }
    CHECK_EQUAL(bench.slabs.idle_blocks(index), std::size_t{0});
    CHECK(bench.slabs.take(index).slab == nullptr);
    CHECK(bench.slabs.take(index + 1).slab == nullptr);
    CHECK(!bench.slabs.give(blocks[7]));
    CHECK(blocks[7].block().state() == State::idle);
    CHECK_EQUAL(bench.slabs.take(index).address(), blocks[7].address());
}

TEST(a_slab_ends_with_its_last_block_and_its_record_serves_another) {
    Bench bench;
    const ClassIndex index = fine_class_of(3000);
    const Extent first = Bench::extent(1, slab_bytes(index, 20)),
                 second = Bench::extent(2, slab_bytes(index, 20));
    Slab& slab = bench.slabs.make(index, first);
    bench.slabs.make(index, second);
    auto blocks = bench.take(index, bench.slabs.idle_blocks(index));
    std::vector<Extent> ended;
    for (std::size_t i = 0; i < blocks.size(); i += 2) CHECK(!bench.slabs.give(blocks[i]));
    for (std::size_t i = 1; i < blocks.size(); i += 2) {
        if (const auto extent = bench.slabs.give(blocks[i])) ended.push_back(*extent);
    }
    REQUIRE(ended.size() == 2);
    CHECK_EQUAL(ended[0].address + ended[1].address, first.address + second.address);
    CHECK_EQUAL(ended[0].bytes, first.bytes);
    CHECK(bench.slabs.all().empty());
    CHECK_EQUAL(bench.slabs.idle_blocks(index), std::size_t{0});
    for (const Extent& extent : {first, second}) {
        CHECK(bench.pages->slab_of(extent.address) == nullptr);
        CHECK(bench.pages->slab_of(extent.end() - 1) == nullptr);
    }
    // A pointer that is freed late finds a record that says "not in use".
    for (std::uint32_t i = 0; i < slab.count; ++i) CHECK(!slab.record(i).with_user());
    const std::set<const Slab*> records{blocks.front().slab, blocks.back().slab};
    CHECK(records.contains(&bench.slabs.make(index, Bench::extent(5, first.bytes))));
    CHECK(records.contains(&bench.slabs.make(index, Bench::extent(6, first.bytes))));
}

TEST(all_blocks_of_a_new_slab_can_be_taken_at_once) {
    Bench bench;
    const ClassIndex index = fine_class_of(20'000);
    Slab& other = bench.slabs.make(index, Bench::extent(0, slab_bytes(index, 16)));
    Slab& slab = bench.slabs.make(index, Bench::extent(1, slab_bytes(index, 16)));
    std::set<std::uint64_t> taken;
    bench.slabs.take_all(slab, [&](BlockRef block) { taken.insert(block.address()); });
    CHECK_EQUAL(taken.size(), std::size_t{slab.count});
    CHECK_EQUAL(bench.slabs.idle_blocks(index), std::size_t{other.count});
    for (const BlockRef& block : bench.take(index, other.count)) CHECK(block.slab == &other);
    CHECK(bench.slabs.take(index).slab == nullptr);
    bench.slabs.take_all(slab, [&](BlockRef) { CHECK(false); });  // it has none
}

TEST(only_slabs_that_nothing_was_taken_from_end_early) {
    Bench bench;
    const ClassIndex index = fine_class_of(1000), other = fine_class_of(30'000);
    bench.slabs.make(index, Bench::extent(0, slab_bytes(index, 16)));
    const BlockRef used = bench.take(index, 1).front();
    bench.slabs.make(index, Bench::extent(1, slab_bytes(index, 16)));
    bench.slabs.make(other, Bench::extent(2, slab_bytes(other, 16)));
    const std::vector<Extent> ended = bench.slabs.end_untouched();
    std::set<std::uint64_t> addresses;
    for (const Extent& extent : ended) addresses.insert(extent.address);
    CHECK(addresses == (std::set{Bench::extent(1, 0).address, Bench::extent(2, 0).address}));
    CHECK_EQUAL(bench.slabs.all().size(), std::size_t{1});
    CHECK_EQUAL(bench.slabs.idle_blocks(other), std::size_t{0});
    CHECK_EQUAL(bench.slabs.idle_blocks(index), std::size_t{used.slab->count - 1});
    CHECK(bench.slabs.end_untouched().empty());
    CHECK(bench.slabs.give(used).has_value());
}
