// Which class serves a request, and how large its block is.
#include "pool/blocks/size_classes.h"

#include "pool/blocks/slabs.h"
#include "testing.h"

using namespace vramkit;
using namespace vramkit::pool;

namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kSmallest = class_bytes(0), kLargestSmall = class_bytes(kFirstRange - 1);

// Requests of all sizes up to 64 MiB, with both neighbours of every class.
template <class Visit>
void each_request(Visit visit) {
    for (std::uint64_t bytes = 1; bytes < 64 << 20; bytes += 1 + bytes / 300) visit(bytes);
    for (ClassIndex index = 0; index < kClasses; ++index) {
        for (const std::uint64_t bytes :
             {class_bytes(index) - 1, class_bytes(index), class_bytes(index) + 1}) {
            visit(bytes);
        }
    }
}

// By search: the least class that is large enough and aligned.
ClassIndex least_class(std::uint64_t bytes, std::uint64_t alignment) {
    for (ClassIndex index = 0; index < kLargeRange; ++index) {
        if (class_bytes(index) >= bytes && class_bytes(index) % alignment == 0) return index;
    }
    return kLargeRange;
}

}  // namespace

TEST(classes_grow_and_are_whole_units) {
    CHECK_EQUAL(kSmallest, std::uint64_t{256});
    CHECK_EQUAL(kLargestSmall, 60 * kKiB);
    CHECK_EQUAL(class_bytes(kLargeRange - 1), kPage);
    for (ClassIndex index = 0; index < kClasses; ++index) {
        CHECK_EQUAL(class_bytes(index) % (is_range(index) ? kSpan : kUnit), std::uint64_t{0});
        if (index > 0) CHECK(class_bytes(index) > class_bytes(index - 1));
        if (index <= kFirstRange) CHECK_EQUAL(fine_class_of(class_bytes(index)), index);
        if (is_range(index)) CHECK_EQUAL(range_class_of(class_bytes(index)), index);
    }
    CHECK_EQUAL(range_class_of(kLargestRequest / kSpan * kSpan), kLargeRange);
}

TEST(a_block_is_of_the_least_class_that_is_large_enough_and_aligned) {
    for (std::uint64_t alignment = kUnit; alignment <= kSpan; alignment *= 2) {
        const ClassMap classes(SizeClasses::fine, alignment);
        each_request([&](std::uint64_t bytes) {
            const ClassIndex index = classes.of(bytes);
            const std::uint64_t block = classes.block_bytes(index, bytes);
            CHECK_EQUAL(index, least_class(bytes, alignment));
            CHECK(block >= bytes);
            CHECK_EQUAL(block % alignment, std::uint64_t{0});
        });
    }
}

TEST(a_small_block_wastes_at_most_an_eighth_and_a_range_less_than_a_span) {
    const ClassMap classes(SizeClasses::fine, kUnit);
    each_request([&](std::uint64_t bytes) {
        const ClassIndex index = classes.of(bytes);
        const std::uint64_t block = classes.block_bytes(index, bytes);
        if (bytes <= 2 * kKiB) {
            CHECK_EQUAL(block, round_up(bytes, kUnit));
        } else if (bytes <= kLargestSmall) {
            CHECK(block - bytes < kUnit || 8 * (block - bytes) <= bytes);
        } else {
            CHECK(is_range(index));
            CHECK_EQUAL(block, round_up(bytes, kSpan));
        }
    });
    const std::uint64_t most = classes.block_bytes(classes.of(kLargestRequest), kLargestRequest);
    CHECK_EQUAL(most, round_up(kLargestRequest, kSpan));
}

TEST(powers_of_two_end_at_one_mebibyte) {
    const ClassMap classes(SizeClasses::power_of_two, kUnit);
    each_request([&](std::uint64_t bytes) {
        const ClassIndex index = classes.of(bytes);
        const std::uint64_t block = classes.block_bytes(index, bytes);
        CHECK_EQUAL(block, bytes <= kLargestPowerOfTwoClass
                               ? std::bit_ceil(std::max(bytes, kSmallest))
                               : round_up(bytes, kSpan));
        CHECK_EQUAL(index, least_class(block, kUnit));
    });
    CHECK_EQUAL(classes.block_bytes(classes.of(300 * kKiB), 300 * kKiB), 512 * kKiB);
}

// A thread cache hands out any block of the class asked for: all of them must be large enough.
TEST(requests_of_one_class_have_blocks_of_one_size) {
    for (const SizeClasses kind : {SizeClasses::fine, SizeClasses::power_of_two}) {
        const ClassMap classes(kind, kUnit);
        each_request([&](std::uint64_t bytes) {
            const ClassIndex index = classes.of(bytes);
            if (index < kLargeRange) {
                CHECK_EQUAL(classes.block_bytes(index, bytes), class_bytes(index));
            }
        });
    }
}

TEST(a_slab_is_whole_spans_for_its_blocks_and_at_most_a_page) {
    for (ClassIndex index = 0; index < kFirstRange; ++index) {
        for (const std::uint64_t count : {0, 1, 2, 16, 100, 1'000'000}) {
            const std::uint64_t bytes = slab_bytes(index, count), block = class_bytes(index);
            CHECK_EQUAL(bytes % kSpan, std::uint64_t{0});
            CHECK(bytes >= block && bytes <= kPage);
            const std::uint64_t asked = std::max<std::uint64_t>(count, 1);
            CHECK(bytes / block >= std::min(asked, kPage / block));
            CHECK(bytes < asked * block + kSpan);  // no span that it does not need
        }
    }
}
