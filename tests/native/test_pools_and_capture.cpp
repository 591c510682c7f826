// Memory pools and graphs of the simulated GPU: who gets which memory when, and what a replay does.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "graphs.h"

namespace {

using gpu::cu;
using gpu::sim;
using graphs::begin_capture;
using graphs::destroy;
using graphs::end_and_instantiate;
using graphs::launch;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;
constexpr std::uint64_t kMillisecond = 1'000'000;

CUdeviceptr allocate(size_t bytes, CUstream stream) {
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cu().cuMemAllocAsync(&pointer, bytes, stream), CUDA_SUCCESS);
    return pointer;
}

CUmemoryPool default_pool() {
    CUmemoryPool pool = nullptr;
    CHECK_EQUAL(cu().cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    return pool;
}

std::uint64_t amount(CUmemPool_attribute which) {
    std::uint64_t value = 0;
    CHECK_EQUAL(cu().cuMemPoolGetAttribute(default_pool(), which, &value), CUDA_SUCCESS);
    return value;
}

void keep_memory() {
    std::uint64_t everything = ~std::uint64_t{0};
    CHECK_EQUAL(
        cu().cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything),
        CUDA_SUCCESS);
}

size_t free_memory() {
    size_t free = 0, total = 0;
    CHECK_EQUAL(cu().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
}

bool reported() { return gpu::text_of(sim().reports) != "[]"; }

bool lives(const std::string& what) {
    return gpu::text_of(sim().live_objects).find("\"" + what + "\":0") == std::string::npos;
}

}  // namespace

TEST(blocks_never_overlap_and_everything_goes_back) {
    gpu::reset_round("capacity=1GiB");
    gpu::use_device();
    const size_t before = free_memory();
    const CUstream streams[] = {gpu::make_stream(), gpu::make_stream(), gpu::make_stream()};
    std::mt19937 random(7);
    std::map<CUdeviceptr, size_t> live;
    std::uint64_t most = 0;
    for (int step = 0, steps = testing::rounds(4000, 100'000); step < steps; ++step) {
        const CUstream stream = streams[random() % 3];
        if (live.size() < 40 && random() % 2 == 0) {
            const size_t bytes = 1 + random() % (size_t{1} << (random() % 23));
            const CUdeviceptr block = allocate(bytes, stream);
            REQUIRE(block != 0);
            const auto after = live.lower_bound(block);
            CHECK(after == live.end() || block + bytes <= after->first);
            CHECK(after == live.begin() ||
                  std::prev(after)->first + std::prev(after)->second <= block);
            live.emplace(block, bytes);
        } else if (!live.empty()) {
            const auto victim = std::next(live.begin(), random() % live.size());
            CHECK_EQUAL(cu().cuMemFreeAsync(victim->first, stream), CUDA_SUCCESS);
            live.erase(victim);
        }
        if (step % 97 == 0) CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
        std::uint64_t asked = 0;
        for (const auto& [block, bytes] : live) asked += bytes;
        const std::uint64_t used = amount(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
        most = std::max(most, used);
        CHECK_EQUAL(used, asked);
        CHECK(used <= amount(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    }
    CHECK_EQUAL(amount(CU_MEMPOOL_ATTR_USED_MEM_HIGH), most);
    for (const auto& [block, bytes] : live) {
        CHECK_EQUAL(cu().cuMemFreeAsync(block, streams[0]), CUDA_SUCCESS);
    }
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(amount(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), std::uint64_t{0});
    CHECK_EQUAL(free_memory(), before);
}

TEST(pool_shares_the_card_with_everything_else) {
    gpu::reset_round("capacity=1GiB");
    gpu::use_device();
    keep_memory();
    const CUstream stream = gpu::make_stream();
    const CUdeviceptr half = gpu::make_memory(kGiB / 2);
    CUdeviceptr block = 0;
    CHECK_EQUAL(cu().cuMemAllocAsync(&block, kGiB / 2 + kMiB, stream), CUDA_ERROR_OUT_OF_MEMORY);
    block = allocate(kGiB / 2, stream);
    CHECK_EQUAL(free_memory(), size_t{0});
    CUdeviceptr more = 0;
    CHECK_EQUAL(cu().cuMemAlloc_v2(&more, kMiB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cu().cuMemFreeAsync(block, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(free_memory(), size_t{0});  // the pool keeps it, until somebody needs it
    CHECK_EQUAL(cu().cuMemAlloc_v2(&more, kMiB), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemFree_v2(half), CUDA_SUCCESS);
}

TEST(another_stream_gets_memory_once_the_free_is_reached) {
    gpu::reset_round();
    gpu::use_device();
    keep_memory();
    const CUfunction spin = gpu::kernel("vk_spin");
    const CUstream one = gpu::make_stream(), two = gpu::make_stream();
    const CUdeviceptr block = allocate(kMiB, one);
    CHECK_EQUAL(gpu::spin(spin, kMillisecond, 1, one), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemFreeAsync(block, one), CUDA_SUCCESS);
    sim().advance(kMillisecond / 2);
    const CUdeviceptr early = allocate(kMiB, two);
    CHECK(early != block);
    CHECK_EQUAL(cu().cuMemFreeAsync(early, one), CUDA_SUCCESS);
    sim().advance(kMillisecond);
    CHECK_EQUAL(allocate(kMiB, two), block);
}

TEST(blocking_stream_is_ordered_after_a_free_on_the_legacy_one) {
    gpu::reset_round();
    gpu::use_device();
    keep_memory();
    const CUfunction spin = gpu::kernel("vk_spin");
    const CUstream blocking = gpu::make_stream(CU_STREAM_DEFAULT), free = gpu::make_stream();
    const CUdeviceptr block = allocate(kMiB, nullptr);
    CHECK_EQUAL(gpu::spin(spin, kMillisecond, 1, nullptr), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemFreeAsync(block, nullptr), CUDA_SUCCESS);
    CHECK(allocate(kMiB, free) != block);
    CHECK_EQUAL(allocate(kMiB, blocking), block);
}

TEST(full_card_makes_a_stream_wait_for_the_free_of_another) {
    gpu::reset_round("capacity=64MiB");
    gpu::use_device();
    const CUfunction spin = gpu::kernel("vk_spin");
    const CUstream one = gpu::make_stream(), two = gpu::make_stream();
    const CUdeviceptr block = allocate(40 * kMiB, one);
    CHECK_EQUAL(gpu::spin(spin, kMillisecond, 1, one), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemFreeAsync(block, one), CUDA_SUCCESS);
    CHECK_EQUAL(allocate(40 * kMiB, two), block);
    CHECK_EQUAL(cu().cuMemsetD8Async(block, 1, kMiB, two), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamSynchronize(two), CUDA_SUCCESS);
    const double set = gpu::kLaunchLatency + kMiB / gpu::kSet;
    CHECK_EQUAL(sim().now(), gpu::kLaunchLatency + kMillisecond + gpu::kWait + set);
    CHECK(!reported());
}

TEST(full_card_without_such_waits_is_out_of_memory) {
    gpu::reset_round("capacity=64MiB");
    gpu::use_device();
    int no = 0;
    CHECK_EQUAL(cu().cuMemPoolSetAttribute(default_pool(),
                                           CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &no),
                CUDA_SUCCESS);
    const CUfunction spin = gpu::kernel("vk_spin");
    const CUstream one = gpu::make_stream(), two = gpu::make_stream();
    const CUdeviceptr block = allocate(40 * kMiB, one);
    CHECK_EQUAL(gpu::spin(spin, kMillisecond, 1, one), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemFreeAsync(block, one), CUDA_SUCCESS);
    CUdeviceptr other = 0;
    CHECK_EQUAL(cu().cuMemAllocAsync(&other, 40 * kMiB, two), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQUAL(cu().cuStreamSynchronize(one), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemAllocAsync(&other, 40 * kMiB, two), CUDA_SUCCESS);
}

TEST(block_freed_by_the_host_comes_back_when_the_host_synchronises) {
    gpu::reset_round();
    gpu::use_device();
    keep_memory();
    const CUstream stream = gpu::make_stream();
    const CUdeviceptr block = allocate(kMiB, stream);
    CHECK_EQUAL(cu().cuMemFree_v2(block), CUDA_SUCCESS);
    CHECK_EQUAL(amount(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), kMiB);
    CHECK_EQUAL(cu().cuMemFree_v2(block), CUDA_ERROR_INVALID_VALUE);
    CHECK(allocate(kMiB, stream) != block);
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(amount(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), kMiB);
    CHECK_EQUAL(allocate(kMiB, stream), block);
}

TEST(block_freed_by_the_host_is_there_when_memory_is_short) {
    gpu::reset_round("capacity=64MiB");
    gpu::use_device();
    keep_memory();
    const CUstream stream = gpu::make_stream();
    const CUdeviceptr block = allocate(40 * kMiB, stream);
    CHECK_EQUAL(cu().cuMemFree_v2(block), CUDA_SUCCESS);
    const CUdeviceptr again = allocate(40 * kMiB, stream);
    CHECK(again != 0);
    CHECK_EQUAL(cu().cuMemFree_v2(again), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemFree_v2(gpu::make_memory(40 * kMiB)), CUDA_SUCCESS);
}

TEST(memory_of_cumemalloc_freed_in_stream_order_stays_until_the_stream_gets_there) {
    gpu::reset_round();
    gpu::use_device();
    const CUfunction spin = gpu::kernel("vk_spin");
    const CUstream stream = gpu::make_stream();
    const size_t before = free_memory();
    const CUdeviceptr block = gpu::make_memory(8 * kMiB);
    CHECK_EQUAL(gpu::spin(spin, kMillisecond, 1, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8Async(block, 1, 8 * kMiB, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemFreeAsync(block, stream), CUDA_SUCCESS);
    CHECK_EQUAL(free_memory(), before - 8 * kMiB);
    CHECK_EQUAL(cu().cuMemFreeAsync(block, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cu().cuMemFree_v2(block), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(free_memory(), before);
    CHECK(!reported());
}

TEST(warm_calls_cost_what_was_measured_and_growth_costs_more) {
    gpu::reset("profile=h200");
    gpu::use_device();
    keep_memory();
    const CUstream stream = gpu::make_stream();
    const auto cost = [&](auto call) {
        const double before = sim().now();
        CHECK_EQUAL(call(), CUDA_SUCCESS);
        return sim().now() - before;
    };
    CUdeviceptr block = 0;
    const auto alloc = [&] { return cu().cuMemAllocAsync(&block, kMiB, stream); };
    CHECK(cost(alloc) > 20e3);
    CHECK_EQUAL(cost([&] { return cu().cuMemFreeAsync(block, stream); }), 750.0);
    CHECK_EQUAL(cost(alloc), 1650.0);
}

TEST(destroyed_context_takes_its_blocks_with_it) {
    gpu::reset_round();
    gpu::use_device();
    CUcontext context = nullptr;
    CHECK_EQUAL(cu().cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    allocate(kMiB, gpu::make_stream());
    CHECK(lives("pool_blocks"));
    CHECK_EQUAL(cu().cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK(!lives("pool_blocks"));
    CHECK(!reported());
}

TEST(threads_allocate_side_by_side) {
    gpu::reset_round("capacity=2GiB");
    const CUcontext context = gpu::use_device();
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) {
        threads.emplace_back([&, seed] {
            CHECK_EQUAL(cu().cuCtxSetCurrent(context), CUDA_SUCCESS);
            const CUstream stream = gpu::make_stream();
            std::mt19937 random(seed);
            for (int step = 0, steps = testing::rounds(60, 600); step < steps; ++step) {
                const size_t bytes = 4096 + random() % kMiB;
                const CUdeviceptr block = allocate(bytes, stream);
                CHECK_EQUAL(cu().cuMemsetD8Async(block, seed, bytes, stream), CUDA_SUCCESS);
                std::vector<unsigned char> seen(bytes);
                CHECK_EQUAL(cu().cuMemcpyDtoHAsync_v2(seen.data(), block, bytes, stream),
                            CUDA_SUCCESS);
                CHECK_EQUAL(cu().cuMemFreeAsync(block, stream), CUDA_SUCCESS);
                CHECK(std::all_of(seen.begin(), seen.end(),
                                  [&](unsigned char byte) { return byte == seed; }));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(amount(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), std::uint64_t{0});
    CHECK(!reported());
}

TEST(replay_takes_the_time_of_the_work_it_repeats) {
    gpu::reset_round();
    gpu::use_device();
    const CUfunction spin = gpu::kernel("vk_spin");
    const CUstream stream = gpu::make_stream();
    const CUdeviceptr memory = gpu::make_memory(kMiB);
    void* pinned = gpu::make_pinned(kMiB);
    const auto work = [&] {
        CHECK_EQUAL(cu().cuMemcpyHtoDAsync_v2(memory, pinned, kMiB, stream), CUDA_SUCCESS);
        CHECK_EQUAL(gpu::spin(spin, kMillisecond, 1, stream), CUDA_SUCCESS);
    };
    CHECK_EQUAL(begin_capture(stream), CUDA_SUCCESS);
    work();
    const CUgraphExec graph = end_and_instantiate(stream);
    CHECK_EQUAL(sim().now(), 0.0);
    CHECK_EQUAL(launch(graph, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    const double replayed = sim().now();
    work();
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(sim().now(), 2 * replayed);
    CHECK_EQUAL(destroy(graph), CUDA_SUCCESS);
}

TEST(graph_longer_than_a_stream_can_hold_runs) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    const CUdeviceptr memory = gpu::make_memory(4096);
    CHECK_EQUAL(begin_capture(stream), CUDA_SUCCESS);
    for (unsigned value = 1; value <= 3000; ++value) {
        CHECK_EQUAL(cu().cuMemsetD32Async(memory, value, 1, stream), CUDA_SUCCESS);
    }
    const CUgraphExec graph = end_and_instantiate(stream);
    CHECK_EQUAL(launch(graph, stream), CUDA_SUCCESS);
    unsigned seen = 0;
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemcpyDtoH_v2(&seen, memory, 4), CUDA_SUCCESS);
    CHECK_EQUAL(seen, 3000u);
    CHECK_EQUAL(destroy(graph), CUDA_SUCCESS);
}

TEST(threads_launch_one_graph_at_once) {
    gpu::reset_round();
    const CUcontext context = gpu::use_device();
    const CUstream stream = gpu::make_stream();
    const CUfunction checksum = gpu::kernel("vk_checksum");
    CUdeviceptr words = gpu::make_memory(4096), total = gpu::make_memory(8);
    CHECK_EQUAL(cu().cuMemsetD32_v2(words, 1, 1024), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8_v2(total, 0, 8), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(begin_capture(stream), CUDA_SUCCESS);
    std::uint64_t count = 1024;
    void* parameters[] = {&words, &count, &total};
    CHECK_EQUAL(cu().cuLaunchKernel(checksum, 1, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr),
                CUDA_SUCCESS);
    const CUgraphExec graph = end_and_instantiate(stream);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            CHECK_EQUAL(cu().cuCtxSetCurrent(context), CUDA_SUCCESS);
            const CUstream own = gpu::make_stream();
            for (int step = 0; step < 50; ++step) CHECK_EQUAL(launch(graph, own), CUDA_SUCCESS);
            CHECK_EQUAL(cu().cuStreamSynchronize(own), CUDA_SUCCESS);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    std::uint64_t seen = 0;
    CHECK_EQUAL(cu().cuMemcpyDtoH_v2(&seen, total, 8), CUDA_SUCCESS);
    CHECK_EQUAL(seen, std::uint64_t{1024 * 4 * 50});
    CHECK(!reported());
    CHECK_EQUAL(destroy(graph), CUDA_SUCCESS);
}

TEST(capture_that_is_abandoned_leaves_nothing) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream(), joined = gpu::make_stream();
    const CUevent event = gpu::make_event();
    CHECK_EQUAL(begin_capture(stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuEventRecord(event, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamWaitEvent(joined, event, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    CHECK(!lives("graphs"));
    // Nothing is captured any more, so nothing is refused.
    CHECK_EQUAL(cu().cuStreamSynchronize(joined), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuEventQuery(event), CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr memory = gpu::make_memory(4096);
    CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_SUCCESS);
}

TEST(values_written_by_a_replay_end_waits_outside) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream writer = gpu::make_stream(), waiter = gpu::make_stream();
    const CUdeviceptr flag = gpu::make_memory(8), memory = gpu::make_memory(4096);
    CHECK_EQUAL(cu().cuMemsetD8_v2(flag, 0, 8), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(begin_capture(writer), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8Async(memory, 1, 4096, writer), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamWriteValue32_v2(writer, flag, 1, 0), CUDA_SUCCESS);
    const CUgraphExec graph = end_and_instantiate(writer);
    CHECK_EQUAL(launch(graph, writer), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamWaitValue32_v2(waiter, flag, 1, CU_STREAM_WAIT_VALUE_GEQ),
                CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8Async(memory, 2, 4096, waiter), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamSynchronize(waiter), CUDA_SUCCESS);
    CHECK(!reported());
    CHECK_EQUAL(destroy(graph), CUDA_SUCCESS);
}
