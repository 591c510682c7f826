// Addresses and chunks of allocations that can be swapped.
#include <map>
#include <random>
#include <set>

#include "base/sizes.h"
#include "swap/space.h"
#include "testing.h"

namespace {

using namespace vramkit;
using swap::Chunk;
using swap::Space;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kBase = std::uint64_t{1} << 40;
constexpr std::uint64_t kChunk = 64 * kMiB;

std::vector<std::uint64_t> sizes_of(Space& space) {
    std::vector<std::uint64_t> sizes;
    for (const auto& [address, chunk] : space.chunks()) sizes.push_back(chunk.bytes / kMiB);
    return sizes;
}

std::uint64_t allocate(Space& space, std::uint64_t bytes) {
    std::vector<Chunk*> made;
    const std::uint64_t address = space.allocate(bytes, made);
    CHECK_EQUAL(space.broken_invariant(), "");
    return address;
}

std::size_t chunks_in(Space& space, std::uint64_t address, std::uint64_t bytes) {
    std::size_t count = 0;
    space.each_chunk_in(address, bytes, [&](Chunk&) { ++count; });
    return count;
}

void remove_unused(Space& space) {
    for (Chunk* chunk : space.unused()) space.remove(*chunk);
}

}  // namespace

TEST(large_allocations_have_chunks_of_their_own) {
    Space space(kBase, 4096 * kMiB, kChunk);
    CHECK(allocate(space, 130 * kMiB) != 0);
    CHECK((sizes_of(space) == std::vector<std::uint64_t>{64, 64, 2}));
    CHECK(allocate(space, 64 * kMiB) != 0);
    CHECK((sizes_of(space) == std::vector<std::uint64_t>{64, 64, 2, 64}));
    for (const auto& [address, chunk] : space.chunks()) {
        CHECK(!chunk.shared);
        CHECK(chunk.state == swap::State::unbacked);
    }
}

TEST(what_wastes_more_than_an_eighth_is_cut_from_a_shared_chunk) {
    for (const auto& [bytes, shared] : std::map<std::uint64_t, bool>{{1, true},
                                                                     {kMiB, true},
                                                                     {2 * kMiB - 1, false},
                                                                     {2 * kMiB, false},
                                                                     {2 * kMiB + 1, true},
                                                                     {15 * kMiB, false},
                                                                     {14 * kMiB + 1, true},
                                                                     {16 * kMiB + 1, false}}) {
        Space space(kBase, 4096 * kMiB, kChunk);
        CHECK(allocate(space, bytes) != 0);
        CHECK_EQUAL(space.chunks().begin()->second.shared, shared);
    }
}

TEST(shared_chunks_grow_with_what_they_hold) {
    Space space(kBase, 4096 * kMiB, 8 * kMiB);
    for (int block = 0; block < 40; ++block) CHECK(allocate(space, kMiB) != 0);
    CHECK((sizes_of(space) == std::vector<std::uint64_t>{2, 2, 4, 8, 8, 8, 8}));
    // A block that is larger than that gets what it needs.
    CHECK(allocate(space, 12 * kMiB + 1) != 0);
    CHECK_EQUAL(sizes_of(space).back(), 14U);
}

TEST(blocks_are_aligned_and_found_by_addresses_inside) {
    Space space(kBase, 4096 * kMiB, kChunk);
    const std::uint64_t first = allocate(space, 100);
    const std::uint64_t second = allocate(space, 513);
    const std::uint64_t third = allocate(space, 200 * kMiB);
    CHECK_EQUAL(second, first + 512);
    CHECK_EQUAL(space.find(first)->bytes, 100U);
    CHECK_EQUAL(space.find(first + 99)->address, first);
    CHECK(!space.find(first + 100));  // of nobody
    CHECK(!space.find(first - 1));
    CHECK_EQUAL(space.find(second + 512)->address, second);
    CHECK_EQUAL(space.find(third + 150 * kMiB)->address, third);
    CHECK_EQUAL(space.find(third + 150 * kMiB)->bytes, 200 * kMiB);
    CHECK(!space.find(third + 200 * kMiB));
    CHECK_EQUAL(space.allocated(), 100 + 513 + 200 * kMiB);
    CHECK(!space.free(second + 1));
    CHECK(space.free(second));
    CHECK(!space.free(second));
    CHECK(!space.find(second));
    CHECK_EQUAL(allocate(space, 600), second);
}

TEST(addresses_run_out_and_come_back) {
    Space space(kBase, 64 * kMiB, kChunk);
    const std::uint64_t first = allocate(space, 40 * kMiB);
    CHECK(first != 0);
    CHECK_EQUAL(allocate(space, 40 * kMiB), 0U);
    CHECK(space.free(first));
    CHECK_EQUAL(allocate(space, 40 * kMiB), 0U);  // its chunks are still there
    remove_unused(space);
    CHECK_EQUAL(allocate(space, 64 * kMiB), first);
}

TEST(chunks_of_a_range) {
    Space space(kBase, 4096 * kMiB, kChunk);
    const std::uint64_t large = allocate(space, 192 * kMiB);
    CHECK_EQUAL(chunks_in(space, large, 192 * kMiB), 3U);
    CHECK_EQUAL(chunks_in(space, large + 64 * kMiB - 1, 2), 2U);
    CHECK_EQUAL(chunks_in(space, large + 64 * kMiB, 64 * kMiB), 1U);
    CHECK_EQUAL(chunks_in(space, large, 0), 0U);
    CHECK_EQUAL(chunks_in(space, 0, ~std::uint64_t{0}), 3U);
}

TEST(random_blocks_never_overlap) {
    for (unsigned seed = 0; seed < static_cast<unsigned>(testing::rounds(5, 100)); ++seed) {
        std::mt19937_64 random(seed);
        Space space(kBase, 1024 * kMiB, 8 * kMiB);
        std::map<std::uint64_t, std::uint64_t> blocks;
        for (int step = 0; step < 400; ++step) {
            if (random() % 5 < 3) {
                const std::uint64_t bytes = 1 + random() % (std::uint64_t{1} << (random() % 26));
                const std::uint64_t address = allocate(space, bytes);
                if (address == 0) continue;
                const auto after = blocks.lower_bound(address);
                CHECK(after == blocks.end() || address + bytes <= after->first);
                CHECK(after == blocks.begin() ||
                      std::prev(after)->first + std::prev(after)->second <= address);
                blocks.emplace(address, bytes);
            } else if (!blocks.empty()) {
                const auto block =
                    std::next(blocks.begin(), static_cast<int>(random() % blocks.size()));
                CHECK(space.free(block->first));
                blocks.erase(block);
                if (random() % 2 == 0) remove_unused(space);
            }
        }
        for (const auto& [address, bytes] : blocks) CHECK(space.free(address));
        remove_unused(space);
        CHECK(space.chunks().empty());
        CHECK_EQUAL(allocate(space, 1024 * kMiB), kBase);
    }
}
