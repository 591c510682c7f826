// Memory of the simulated GPU: who can reach it, how much there is, and what mapping moves.
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>

#include "gpu.h"

namespace {

using gpu::cu;
using gpu::sim;

constexpr size_t kPage = 2 << 20;  // granularity of the round card
constexpr size_t kGiB = size_t{1} << 30;

CUmemAllocationProp on_device() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 0;
    return properties;
}

CUmemGenericAllocationHandle make_physical(size_t bytes) {
    const CUmemAllocationProp properties = on_device();
    CUmemGenericAllocationHandle handle = 0;
    CHECK_EQUAL(cu().cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
}

CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address = 0;
    CHECK_EQUAL(cu().cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    return address;
}

void map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) {
    CUmemAccessDesc access{};
    access.location = on_device().location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK_EQUAL(cu().cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
}

std::vector<unsigned> words_at(CUdeviceptr address, size_t count) {
    std::vector<unsigned> words(count);
    CHECK_EQUAL(cu().cuMemcpyDtoH_v2(words.data(), address, count * 4), CUDA_SUCCESS);
    return words;
}

// Whether host code could read the byte, without dying of the answer.
bool host_can_read(const void* address) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const bool can = ::write(ends[1], address, 1) == 1;
    if (!can) CHECK_EQUAL(errno, EFAULT);
    ::close(ends[0]);
    ::close(ends[1]);
    return can;
}

size_t free_bytes() {
    size_t free = 0, total = 0;
    CHECK_EQUAL(cu().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
}

TEST(host_code_cannot_reach_device_addresses) {
    gpu::reset_round();
    gpu::use_device();
    const CUdeviceptr memory = gpu::make_memory(4096);
    CHECK_EQUAL(cu().cuMemsetD8_v2(memory, 7, 4096), CUDA_SUCCESS);
    CHECK(!host_can_read(reinterpret_cast<const void*>(memory)));
    const void* alias = sim().host_alias(memory);
    REQUIRE(alias != nullptr);
    CHECK(host_can_read(alias));
    CHECK(host_can_read(gpu::make_pinned(64)));
}

TEST(alias_shows_the_bytes_and_writes_through) {
    gpu::reset_round();
    gpu::use_device();
    const CUdeviceptr memory = gpu::make_memory(4096);
    CHECK_EQUAL(cu().cuMemsetD32_v2(memory, 0xabcd1234, 1024), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    unsigned word = 0;
    std::memcpy(&word, sim().host_alias(memory + 40), 4);
    CHECK_EQUAL(word, 0xabcd1234u);
    word = 99;
    std::memcpy(sim().host_alias(memory + 40), &word, 4);
    CHECK_EQUAL(words_at(memory + 40, 1)[0], 99u);
    CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_SUCCESS);
    CHECK(sim().host_alias(memory) == nullptr);
}

TEST(alias_of_freed_memory_faults) {
    gpu::reset_round();
    gpu::use_device();
    const CUdeviceptr memory = gpu::make_memory(4 * kPage);
    const void* alias = sim().host_alias(memory);
    CHECK(host_can_read(alias));
    CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_SUCCESS);
    CHECK(!host_can_read(alias));
}

TEST(remapping_moves_bytes_without_a_copy) {
    gpu::reset_round();
    gpu::use_device();
    const auto first = make_physical(kPage), second = make_physical(kPage);
    const CUdeviceptr range = reserve(2 * kPage);
    map(range, kPage, first);
    map(range + kPage, kPage, second);
    CHECK_EQUAL(cu().cuMemsetD32_v2(range, 1, kPage / 4), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD32_v2(range + kPage, 2, kPage / 4), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemUnmap(range, 2 * kPage), CUDA_SUCCESS);
    CHECK(sim().host_alias(range) == nullptr);
    map(range, kPage, second);
    map(range + kPage, kPage, first);
    CHECK_EQUAL(words_at(range, 1)[0], 2u);
    CHECK_EQUAL(words_at(range + kPage, 1)[0], 1u);
    // One copy may run over the seam between two mappings.
    const auto seam = words_at(range + kPage - 8, 4);
    CHECK(seam == std::vector<unsigned>({2, 2, 1, 1}));
}

TEST(one_handle_at_two_addresses_is_one_memory) {
    gpu::reset_round();
    gpu::use_device();
    const auto handle = make_physical(kPage);
    const CUdeviceptr here = reserve(kPage), there = reserve(kPage);
    map(here, kPage, handle);
    map(there, kPage, handle);
    CHECK_EQUAL(cu().cuMemsetD32_v2(here + 64, 5, 1), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(words_at(there + 64, 1)[0], 5u);
    CHECK_EQUAL(cu().cuMemUnmap(here, kPage), CUDA_SUCCESS);
    CHECK_EQUAL(words_at(there + 64, 1)[0], 5u);
}

TEST(released_handle_lives_until_it_is_unmapped) {
    gpu::reset_round("capacity=8MiB");
    gpu::use_device();
    const size_t all = free_bytes();
    const auto handle = make_physical(kPage);
    const CUdeviceptr range = reserve(kPage);
    map(range, kPage, handle);
    CHECK_EQUAL(cu().cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQUAL(free_bytes(), all - kPage);
    CHECK_EQUAL(cu().cuMemUnmap(range, kPage), CUDA_SUCCESS);
    CHECK_EQUAL(free_bytes(), all);
}

TEST(memory_is_zero_when_it_is_new_and_not_the_old_bytes) {
    gpu::reset_round("capacity=8MiB");
    gpu::use_device();
    for (int round = 0; round < 3; ++round) {
        const CUdeviceptr memory = gpu::make_memory(6 << 20);
        CHECK_EQUAL(words_at(memory + 4096, 1)[0], 0u);
        CHECK_EQUAL(cu().cuMemsetD32_v2(memory, 17, (6 << 20) / 4), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_SUCCESS);
    }
}

TEST(capacity_is_what_was_set_and_comes_back) {
    gpu::reset_round("capacity=64MiB");
    gpu::use_device();
    CHECK_EQUAL(free_bytes(), size_t{64} << 20);
    std::vector<CUdeviceptr> blocks;
    CUdeviceptr pointer = 0;
    while (cu().cuMemAlloc_v2(&pointer, 4 * kPage) == CUDA_SUCCESS) blocks.push_back(pointer);
    CHECK_EQUAL(blocks.size(), size_t{8});
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, kPage), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(free_bytes(), size_t{0});
    for (const CUdeviceptr block : blocks) CHECK_EQUAL(cu().cuMemFree_v2(block), CUDA_SUCCESS);
    CHECK_EQUAL(free_bytes(), size_t{64} << 20);
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64 << 20), CUDA_SUCCESS);
}

TEST(many_small_blocks_do_not_touch_each_other) {
    gpu::reset_round("capacity=64MiB,checker=off");
    gpu::use_device();
    constexpr unsigned kBlocks = 3000;
    std::vector<CUdeviceptr> blocks;
    std::set<CUdeviceptr> distinct;
    const auto size_of = [](unsigned i) { return size_t{4} * (1 + i * 37 % 900); };
    for (unsigned i = 0; i < kBlocks; ++i) {
        blocks.push_back(gpu::make_memory(size_of(i)));
        distinct.insert(blocks.back());
        CHECK_EQUAL(blocks.back() % 256, CUdeviceptr{0});
        CHECK_EQUAL(cu().cuMemsetD32_v2(blocks.back(), i, size_of(i) / 4), CUDA_SUCCESS);
    }
    CHECK_EQUAL(distinct.size(), size_t{kBlocks});
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    // Free every second one; the others keep their bytes.
    for (unsigned i = 0; i < kBlocks; i += 2) {
        CHECK_EQUAL(cu().cuMemFree_v2(blocks[i]), CUDA_SUCCESS);
    }
    for (unsigned i = 1; i < kBlocks; i += 2) {
        const auto words = words_at(blocks[i], size_of(i) / 4);
        CHECK_EQUAL(words.front(), i);
        CHECK_EQUAL(words.back(), i);
        CHECK_EQUAL(cu().cuMemFree_v2(blocks[i]), CUDA_SUCCESS);
    }
    CHECK_EQUAL(free_bytes(), size_t{64} << 20);
}

TEST(a_card_without_data_is_as_large_as_the_profile_says) {
    gpu::reset_round("data=off");
    gpu::use_device();
    const size_t all = free_bytes();
    CHECK(all > 199 * size_t{1000000000});
    const size_t bytes = 100 * size_t{1000000000};
    const CUdeviceptr memory = gpu::make_memory(bytes);
    CHECK(free_bytes() <= all - bytes);
    CHECK(sim().host_alias(memory) == nullptr);
    // The time of a copy does not depend on there being bytes.
    const CUstream stream = gpu::make_stream();
    void* host = gpu::make_pinned(40 * kGiB);
    const double before = sim().now();
    CHECK_EQUAL(cu().cuMemcpyHtoDAsync_v2(memory, host, 40 * kGiB, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    const double expected = gpu::kCopyLatency + static_cast<double>(40 * kGiB) / gpu::kToDevice;
    CHECK(std::abs(sim().now() - before - expected) < 1e-9 * expected);
    CUdeviceptr more = 0;
    CHECK_EQUAL(cu().cuMemAlloc_v2(&more, bytes), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_SUCCESS);
    CHECK_EQUAL(free_bytes(), all);
}

TEST(bounds_hold_without_data_too) {
    gpu::reset_round("data=off");
    gpu::use_device();
    const CUdeviceptr memory = gpu::make_memory(kPage);
    CHECK_EQUAL(cu().cuMemsetD8_v2(memory, 0, kPage + 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cu().cuMemsetD8_v2(memory, 0, kPage), CUDA_SUCCESS);
}

TEST(reset_forgets_memory) {
    gpu::reset_round();
    gpu::use_device();
    const CUdeviceptr memory = gpu::make_memory(kPage);
    gpu::reset_round();
    gpu::use_device();
    CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_ERROR_INVALID_VALUE);
    const std::string live = gpu::text_of(sim().live_objects);
    CHECK(live.find("\"device\":0") != std::string::npos);
}

}  // namespace
