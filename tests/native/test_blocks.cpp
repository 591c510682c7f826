// Announced blocks, beside a plain list of them.
#include <algorithm>
#include <random>
#include <vector>

#include "sim/checker/blocks.cpp"
#include "testing.h"

using namespace vramkit::sim;

namespace {

constexpr std::uint64_t kUnits = 64;

// The same rules by search.
struct Plain {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;  // begin, end

    void add(std::uint64_t begin, std::uint64_t end) {
        std::erase_if(blocks, [&](const auto& block) {
            const bool apart = block.second <= begin || end <= block.first;
            const bool around =
                block.first <= begin && end <= block.second && block != std::pair(begin, end);
            return !apart && !around;
        });
        blocks.emplace_back(begin, end);
    }
    void remove(std::uint64_t begin) {
        auto best = blocks.end();
        for (auto at = blocks.begin(); at != blocks.end(); ++at) {
            if (at->first == begin && (best == blocks.end() || at->second < best->second))
                best = at;
        }
        if (best != blocks.end()) blocks.erase(best);
    }
    void forget(std::uint64_t begin, std::uint64_t end) {
        std::erase_if(blocks,
                      [&](const auto& block) { return block.first < end && begin < block.second; });
    }
    std::pair<std::uint64_t, std::uint64_t> around(std::uint64_t address) const {
        std::pair<std::uint64_t, std::uint64_t> best;
        for (const auto& block : blocks) {
            if (address < block.first || address >= block.second) continue;
            if (best.second == 0 || block.second - block.first < best.second - best.first) {
                best = block;
            }
        }
        return best;
    }
};

Mark stream(std::uint64_t id) {
    Mark mark;
    mark.stream = id;
    return mark;
}

}  // namespace

TEST(the_smallest_block_around_an_address_is_found) {
    std::mt19937 random(3);
    Blocks blocks;
    Plain plain;
    for (int step = 0; step < 5000; ++step) {
        const std::uint64_t begin = random() % kUnits;
        const std::uint64_t bytes = 1 + random() % (random() % 4 == 0 ? 32 : 8);
        switch (random() % 8) {
            case 0:
                blocks.remove(begin);
                plain.remove(begin);
                break;
            case 1:
                blocks.forget_blocks(begin, bytes);
                plain.forget(begin, begin + bytes);
                break;
            default:
                blocks.add(begin, bytes, false, Mark{});
                plain.add(begin, begin + bytes);
        }
        for (std::uint64_t address = 0; address < kUnits + 40; ++address) {
            const Block* block = blocks.around(address);
            const auto expected = plain.around(address);
            REQUIRE(expected == (block == nullptr ? std::pair<std::uint64_t, std::uint64_t>{}
                                                  : std::pair(block->begin, block->end)));
        }
    }
}

TEST(nothing_is_near_outside_of_regions) {
    Blocks blocks;
    blocks.add_region(1000, 1000, stream(1));
    blocks.add(1200, 100, false, stream(2));
    CHECK(!blocks.nearest(999).has_value());
    CHECK(!blocks.nearest(2000).has_value());
    CHECK_EQUAL(blocks.nearest(1100)->stream, std::uint64_t{1});
    CHECK_EQUAL(blocks.nearest(1900)->stream, std::uint64_t{2});
    blocks.forget(1000, 1000);
    CHECK(!blocks.nearest(1100).has_value());
    CHECK(blocks.empty());
}
