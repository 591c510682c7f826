// What sets and kernels do to memory: every width, odd sizes and places, ranges of several
// mappings.
#include <array>
#include <cstring>
#include <vector>

#include "gpu.h"

namespace {

using gpu::cu;
using gpu::sim;

constexpr size_t kPage = 2 << 20;  // granularity of the round card
constexpr std::byte kBefore{0x5A};

// Device addresses over two pieces of memory, and the cut between them.
struct Cut {
    Cut() {
        gpu::reset_round();
        gpu::use_device();
        CHECK_EQUAL(cu().cuMemAddressReserve(&begin, 2 * kPage, 0, 0, 0), CUDA_SUCCESS);
        for (int i = 0; i < 2; ++i) map(begin + i * kPage, make_piece());
        cut = begin + kPage;
    }

    CUmemGenericAllocationHandle make_piece() {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        CHECK_EQUAL(cu().cuMemCreate(&last, kPage, &properties, 0), CUDA_SUCCESS);
        return last;
    }

    static void map(CUdeviceptr address, CUmemGenericAllocationHandle piece) {
        CUmemAccessDesc access{};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CHECK_EQUAL(cu().cuMemMap(address, kPage, 0, piece, 0), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuMemSetAccess(address, kPage, &access, 1), CUDA_SUCCESS);
    }

    // The bytes behind a device address, once the card is idle.
    static std::byte* at(CUdeviceptr address) {
        CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
        return static_cast<std::byte*>(sim().host_alias(address));
    }

    static unsigned word(CUdeviceptr address) {
        unsigned value = 0;
        std::memcpy(&value, at(address), sizeof value);
        return value;
    }

    CUdeviceptr begin = 0;
    CUdeviceptr cut = 0;
    CUmemGenericAllocationHandle last = 0;
};

CUresult set(CUdeviceptr to, unsigned value, unsigned width, size_t count) {
    if (width == 1) return cu().cuMemsetD8_v2(to, static_cast<unsigned char>(value), count);
    if (width == 2) return cu().cuMemsetD16_v2(to, static_cast<unsigned short>(value), count);
    return cu().cuMemsetD32_v2(to, value, count);
}

template <class... Parameters>
void launch(const char* name, Parameters... given) {
    void* parameters[] = {&given...};
    CHECK_EQUAL(
        cu().cuLaunchKernel(gpu::kernel(name), 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr),
        CUDA_SUCCESS);
}

// Counts of elements around the sizes that the simulator handles at a time.
constexpr std::array<std::uint64_t, 9> kCounts{1, 2, 3, 7, 1023, 1024, 1025, 4097, 10'000};

TEST(set_of_every_width_fills_its_range_and_nothing_else) {
    const Cut memory;
    constexpr unsigned kValue = 0x11223344;
    for (const unsigned width : {1u, 2u, 4u}) {
        for (const std::uint64_t count : kCounts) {
            // From one element behind the beginning of a page, and across two mappings.
            for (const CUdeviceptr to : {memory.begin + width, memory.cut - width}) {
                const size_t bytes = count * width;
                std::memset(Cut::at(to - width), static_cast<int>(kBefore), bytes + 2 * width);
                CHECK_EQUAL(set(to, kValue, width, count), CUDA_SUCCESS);
                const std::byte* seen = Cut::at(to - width);
                size_t wrong = 0;
                for (size_t i = 0; i < bytes; ++i) {
                    wrong += seen[width + i] != std::byte(kValue >> (i % width * 8) & 0xff);
                }
                CHECK_EQUAL(wrong, 0u);
                CHECK(seen[width - 1] == kBefore);
                CHECK(seen[width + bytes] == kBefore);
            }
        }
    }
}

TEST(fill_and_sweep_of_any_count_end_where_they_should) {
    const Cut memory;
    for (const std::uint64_t count : kCounts) {
        const CUdeviceptr to = memory.cut - 4;
        std::memset(Cut::at(to - 4), static_cast<int>(kBefore), count * 4 + 8);
        launch("vk_fill", to, count, 7u);
        launch("vk_sweep", to, count, 1u);
        size_t wrong = 0;
        for (std::uint64_t i = 0; i < count; ++i) {
            wrong += Cut::word(to + i * 4) != 7u * 1664525u + 1013904223u;
        }
        CHECK_EQUAL(wrong, 0u);
        CHECK_EQUAL(Cut::word(to - 4), 0x5A5A5A5Au);
        CHECK_EQUAL(Cut::word(to + count * 4), 0x5A5A5A5Au);
    }
}

TEST(sweep_repeats_its_step_for_each_round) {
    const Cut memory;
    for (const unsigned rounds : {0u, 1u, 2u, 3u, 100u, 1001u}) {
        launch("vk_fill", memory.begin, std::uint64_t{5}, 123u);
        launch("vk_sweep", memory.begin, std::uint64_t{5}, rounds);
        unsigned expected = 123;
        for (unsigned round = 0; round < rounds; ++round) {
            expected = expected * 1664525u + 1013904223u;
        }
        CHECK_EQUAL(Cut::word(memory.begin + 16), expected);
    }
}

TEST(add_works_in_place_and_between_ranges_cut_at_different_words) {
    const Cut memory;
    for (const std::uint64_t count : kCounts) {
        const CUdeviceptr left = memory.cut - 4;
        const CUdeviceptr right = memory.begin + 4;
        const CUdeviceptr out = memory.begin + kPage / 2 + 8;
        for (std::uint64_t i = 0; i < count; ++i) {
            const unsigned one = static_cast<unsigned>(i), other = 0xfffffff0u;
            std::memcpy(Cut::at(left + i * 4), &one, 4);
            std::memcpy(Cut::at(right + i * 4), &other, 4);
        }
        launch("vk_add", out, left, right, count);
        launch("vk_add", left, left, right, count);
        size_t wrong = 0;
        for (std::uint64_t i = 0; i < count; ++i) {
            const unsigned expected = static_cast<unsigned>(i) + 0xfffffff0u;
            wrong += Cut::word(out + i * 4) != expected || Cut::word(left + i * 4) != expected;
        }
        CHECK_EQUAL(wrong, 0u);
    }
}

// A range that is written one word behind where it is read, and that has a second address.
TEST(add_reads_what_was_there_before_it_wrote) {
    Cut memory;
    CUdeviceptr second = 0;
    CHECK_EQUAL(cu().cuMemAddressReserve(&second, kPage, 0, 0, 0), CUDA_SUCCESS);
    Cut::map(second, memory.last);
    constexpr std::uint64_t kCount = 5000;
    for (const CUdeviceptr read : {memory.cut, second}) {
        for (unsigned i = 0; i < kCount; ++i) std::memcpy(Cut::at(memory.cut + i * 4), &i, 4);
        launch("vk_add", memory.cut + 4, read, read, kCount);
        size_t wrong = 0;
        for (unsigned i = 0; i < kCount; ++i) {
            wrong += Cut::word(memory.cut + 4 + i * 4) != 2 * i;
        }
        CHECK_EQUAL(wrong, 0u);
    }
}

TEST(checksum_adds_whole_words_in_64_bits_to_what_is_there) {
    const Cut memory;
    for (const std::uint64_t count : kCounts) {
        const CUdeviceptr from = memory.cut - 8;
        const CUdeviceptr out = memory.begin;
        launch("vk_fill", from, count + 1, 0xffffffffu);
        const std::uint64_t before = 5;
        std::memcpy(Cut::at(out), &before, sizeof before);
        launch("vk_checksum", from, count, out);
        std::uint64_t sum = 0;
        std::memcpy(&sum, Cut::at(out), sizeof sum);
        CHECK_EQUAL(sum, before + count * 0xffffffffu);
    }
}

}  // namespace
