// The codec of packed weights, in buffers of exactly the size it may use: for the sanitizers.
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "testing.h"
#include "weights/packing.h"

namespace {

using vramkit::Failure;
using namespace vramkit::weights;

// Three of four weights have one of 15 exponents.
std::vector<std::uint16_t> some_weights(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::uint16_t> weights(count);
    for (std::uint16_t& weight : weights) {
        const auto drawn = static_cast<std::uint32_t>(random());
        weight = static_cast<std::uint16_t>(drawn);
        if (drawn >> 30 != 0) {
            weight =
                static_cast<std::uint16_t>((weight & 0x807f) | (110 + (drawn >> 16) % 15) << 7);
        }
    }
    return weights;
}

struct Packed {
    std::vector<ChunkPlan> plans;
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;

    std::span<std::byte> all() const { return {bytes.get(), size}; }
    // Calls body(plan, its bytes).
    template <typename Body>
    void each(const Body& body) const {
        std::size_t at = 0;
        for (const ChunkPlan& plan : plans) {
            body(plan, all().subspan(at, plan.stored_bytes()));
            at += plan.stored_bytes();
        }
    }
};

Packed packed(std::span<const std::uint16_t> weights, std::uint64_t chunk, unsigned threads) {
    Packed result{plan_packing(weights, chunk, true, threads), nullptr, 0};
    for (const ChunkPlan& plan : result.plans) result.size += plan.stored_bytes();
    result.bytes.reset(new std::byte[result.size]);
    Failure why;
    CHECK(pack(weights, result.plans, result.all(), threads, why));
    CHECK_EQUAL(why.message, "");
    return result;
}

TEST(weights_of_any_number_come_back) {
    for (std::size_t count = 1; count < 600; count += count < 70 ? 1 : 37) {
        const auto weights = some_weights(count, static_cast<unsigned>(count));
        packed(weights, kDefaultChunkWeights, 1)
            .each([&](const ChunkPlan& plan, std::span<std::byte> bytes) {
                CHECK_EQUAL(plan.count, count);
                std::vector<std::uint16_t> back(count);
                Failure why;
                CHECK(unpack(bytes, 0, back, why));
                CHECK(back == weights);
            });
    }
}

TEST(threads_share_chunks_and_give_the_same_bytes) {
    const auto weights = some_weights(2 * kPieceWeights + 12'345, 7);
    const Packed one = packed(weights, kPieceWeights + 512, 1);
    const Packed four = packed(weights, kPieceWeights + 512, 4);
    REQUIRE(one.size == four.size);
    CHECK(std::memcmp(one.bytes.get(), four.bytes.get(), one.size) == 0);
    four.each([&](const ChunkPlan& plan, std::span<std::byte> bytes) {
        std::vector<std::uint16_t> back(plan.count);
        Failure why;
        CHECK(unpack(bytes, 0, back, why));
        CHECK(std::equal(back.begin(), back.end(), weights.begin() + plan.first));
    });
}

TEST(damaged_chunks_are_not_read_beyond_their_end) {
    const auto weights = some_weights(301, 3);
    const Packed whole = packed(weights, kDefaultChunkWeights, 1);
    std::mt19937 random(11);
    for (int round = 0; round < testing::rounds(3000, 300'000); ++round) {
        const std::size_t size = round % 2 == 0 ? whole.size : random() % (whole.size + 1);
        const std::unique_ptr<std::byte[]> copy(new std::byte[size]);
        std::memcpy(copy.get(), whole.bytes.get(), size);
        for (unsigned change = random() % 4; size > 0 && change > 0; --change) {
            copy[random() % size] = static_cast<std::byte>(random());
        }
        std::vector<std::uint16_t> back(random() % 302);
        Failure why;
        const std::span<const std::byte> given(copy.get(), size);
        if (!unpack(given, random() % 302, back, why)) {
            CHECK(why.kind == Failure::Kind::bad_value);
        } else {
            CHECK_EQUAL(size, whole.size);
        }
    }
}

TEST(weights_that_change_after_the_plan_stay_inside_their_lists) {
    const auto weights = some_weights(5000, 5);
    const std::vector<std::uint16_t> exceptions = some_weights(5000, 6);
    auto plans = plan_packing(weights, 2048, true, 1);
    std::size_t size = 0;
    for (const ChunkPlan& plan : plans) size += plan.stored_bytes();
    const std::unique_ptr<std::byte[]> out(new std::byte[size]);
    for (const auto& changed : {exceptions, std::vector<std::uint16_t>(5000, 0x7f80),
                                std::vector<std::uint16_t>(5000, 110 << 7)}) {
        Failure why;
        CHECK(!pack(changed, plans, {out.get(), size}, 2, why));
        CHECK(why.kind == Failure::Kind::bad_value);
    }
}

TEST(launches_have_a_thread_for_all_work) {
    CHECK_EQUAL(unpack_blocks(1), 1U);
    CHECK_EQUAL(unpack_blocks(16 * kUnpackThreads), 1U);
    CHECK_EQUAL(unpack_blocks(16 * kUnpackThreads + 1), 2U);
    CHECK_EQUAL(unpack_blocks(kMostWeightsInChunk), 1U << 19);
    CHECK_EQUAL(patch_blocks(1), 1U);
    CHECK_EQUAL(patch_blocks(kUnpackThreads + 1), 2U);
    CHECK_EQUAL(patch_blocks(kMostWeightsInChunk), 1U << 23);
}

}  // namespace
