// Pools of stream-ordered memory: what they are asked, what they keep, what calls they make.
#pragma once

#include <string.h>

#include "card.h"

namespace {

// What is asked of stream-ordered blocks and their pools.
void pools() {
    auto* range = other<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>("cuMemGetAddressRange_v2");
    auto* choose = other<CUresult(CUdevice, CUmemoryPool)>("cuDeviceSetMemPool");
    auto* chosen = other<CUresult(CUmemoryPool*, CUdevice)>("cuDeviceGetMemPool");
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool own, usual, now;
    CALL(cuDeviceGetDefaultMemPool, &usual, 0);
    CALL(cuMemPoolCreate, &own, &properties);
    const auto used = [&](CUmemoryPool pool, CUmemPool_attribute which) {
        cuuint64_t bytes = 0;
        CALL(cuMemPoolGetAttribute, pool, which, &bytes);
        return static_cast<unsigned long long>(bytes);
    };
    const auto say = [&](const char* when) {
        printf(
            "%s: %llu %llu, %llu %llu, %d\n", when, used(usual, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
            used(usual, CU_MEMPOOL_ATTR_USED_MEM_HIGH), used(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
            used(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH),
            used(usual, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >=
                used(usual, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    };
    say("first");
    CUdeviceptr one, two, three, none;
    printf("%d %d\n", call.cuMemAllocAsync(&none, 0, nullptr),
           call.cuMemFreeAsync(0x1000, nullptr));
    CALL(cuMemAllocAsync, &one, 1000, nullptr);
    CALL(cuMemAllocFromPoolAsync, &two, 3 << 20, own, nullptr);
    check(choose(0, own), "cuDeviceSetMemPool");
    CALL(cuMemAllocAsync, &three, 5000, nullptr);
    check(chosen(&now, 0), "cuDeviceGetMemPool");
    printf("%d %d\n", now == own, one % 512 + two % 512 + three % 512 == 0);
    say("three");
    CUdeviceptr base = 0, begin = 0;
    size_t bytes = 0, length = 0;
    CUmemoryPool pool;
    unsigned type = 0;
    int device = -1;
    CUcontext owner;
    check(range(&base, &bytes, three + 4999), "cuMemGetAddressRange");
    CALL(cuPointerGetAttribute, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, two + 100);
    CALL(cuPointerGetAttribute, &begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, two + 100);
    CALL(cuPointerGetAttribute, &length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, two + 100);
    CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, two);
    CALL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, two);
    CALL(cuPointerGetAttribute, &owner, CU_POINTER_ATTRIBUTE_CONTEXT, two);
    printf("%d %zu %d %d %zu %u %d %d\n", base == three, bytes, pool == own, begin == two, length,
           type, device, owner == nullptr);
    launch(fill, nullptr, two, (3 << 20) / 4, 7);
    CALL(cuMemFreeAsync, one, nullptr);
    say("two");
    CALL(cuMemPoolDestroy, own);  // with live blocks
    check(chosen(&now, 0), "cuDeviceGetMemPool");
    printf("%d %llx\n", now == usual, sum(Block{two, 3 << 20, false, {}}, nullptr));
    CALL(cuMemFreeAsync, two, nullptr);
    CALL(cuCtxSynchronize);
    CALL(cuMemFree_v2, three);
    printf("%d %d %d\n", call.cuMemFreeAsync(two, nullptr), call.cuMemFree_v2(three),
           call.cuMemPoolDestroy(usual));
    CALL(cuMemPoolTrimTo, usual, 0);
    printf("%llu %llu\n", used(usual, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
           used(usual, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    cuuint64_t zero = 0;
    CALL(cuMemPoolSetAttribute, usual, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero);
    printf("%llu\n", used(usual, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    // All of the card, which what is unused in a pool may not keep from anybody.
    size_t free = 0, total = 0;
    CALL(cuMemAllocAsync, &one, 100 << 20, nullptr);
    launch(fill, nullptr, one, (100 << 20) / 4, 3);
    CALL(cuMemFreeAsync, one, nullptr);
    CALL(cuCtxSynchronize);
    CALL(cuMemGetInfo_v2, &free, &total);
    CALL(cuMemAlloc_v2, &two, total / 16 * 15);
    printf("%d\n", call.cuMemAllocAsync(&one, 100 << 20, nullptr));
    CALL(cuMemFree_v2, two);
    CALL(cuMemAllocAsync, &one, 100 << 20, nullptr);
    CALL(cuMemFreeAsync, one, nullptr);
}

// A stream-ordered block whose memory a graph makes: it stays on the card.
void graph_memory(int steps) {
    const GraphCalls graphs;
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    CUdeviceptr before, inside = 0;
    CALL(cuMemAllocAsync, &before, 1 << 20, stream);
    launch(fill, stream, before, (1 << 20) / 4, 3);
    CUgraph graph = nullptr;
    check(graphs.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    const CUresult made = call.cuMemAllocAsync(&inside, 4096, stream);
    for (int step = 0; step < steps; ++step) {
        launch(sweep, stream, before, (1 << 20) / 4, 1);
    }
    printf("%d %d\n", made, graphs.end_capture(stream, &graph));
    CALL(cuStreamSynchronize, stream);
    printf("%llx\n", sum(Block{before, 1 << 20, false, {}}, stream));
    CALL(cuMemFreeAsync, before, stream);
    CALL(cuStreamSynchronize, stream);
}

// Memory that stays on the card by the user's wish counts as used until it is freed.
void counted() {
    auto* pitched =
        other<CUresult(CUdeviceptr*, size_t*, size_t, size_t, unsigned)>("cuMemAllocPitch_v2");
    size_t before = 0, during = 0, after = 0, total = 0, pitch = 0;
    CALL(cuMemFree_v2, allocate(4096).address);
    CALL(cuMemGetInfo_v2, &before, &total);
    Block plain = allocate(32 << 20), mapped = map(3);
    CUdeviceptr rows;
    check(pitched(&rows, &pitch, 512, 4096, 4), "cuMemAllocPitch");
    for (auto handle : mapped.handles) CALL(cuMemRelease, handle);
    mapped.handles.clear();
    CALL(cuMemGetInfo_v2, &during, &total);
    CALL(cuMemFree_v2, rows);
    give_back(plain);
    give_back(mapped);
    CALL(cuMemGetInfo_v2, &after, &total);
    printf("%zu %d\n", before - during, before == after);
}

// Controls of the simulated GPU, beneath a gate too.
template <class Function>
Function* control(const char* name) {
    auto* driver = other<void*(const char**)>("gateDriver");
    void* library = driver != nullptr ? driver(nullptr) : RTLD_DEFAULT;
    return reinterpret_cast<Function*>(dlsym(library, name));
}

void say_calls() {
    static char text[1 << 16];
    control<size_t(char*, size_t)>("simCallCounts")(text, sizeof text);
    fputs(text, stderr);
}

// Pairs of an allocation and a free; the calls of the first ones are not counted.
void warm_pairs(int steps) {
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    for (int step = -10; step < steps; ++step) {
        if (step == 0) control<void()>("simResetCallCounts")();
        CUdeviceptr one, two;
        CALL(cuMemAllocAsync, &one, 1000, stream);
        CALL(cuMemAllocAsync, &two, 5 << 20, stream);
        launch(fill, stream, two, (5 << 20) / 4, step);
        CALL(cuMemFreeAsync, one, stream);
        CALL(cuMemFreeAsync, two, stream);
    }
}

// Unused memory of a pool, as the program waits now and then: all of it is kept where the program
// asked for that, and none otherwise.
void unused(int steps) {
    auto* advance = control<int(double)>("simAdvance");
    CUmemoryPool pool;
    CALL(cuDeviceGetDefaultMemPool, &pool, 0);
    for (cuuint64_t threshold : {~cuuint64_t{0}, cuuint64_t{0}}) {
        CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
        CUdeviceptr block;
        CALL(cuMemAllocAsync, &block, 100 << 20, nullptr);
        launch(fill, nullptr, block, (100 << 20) / 4, 1);
        CALL(cuMemFreeAsync, block, nullptr);
        for (int step = 0; step < steps; ++step) {
            CALL(cuCtxSynchronize);
            advance(0.5e9);
        }
        cuuint64_t used = 0, reserved = 0;
        CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
        CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
        printf("%llu %d\n", static_cast<unsigned long long>(used), reserved >= 100 << 20);
    }
}

}  // namespace
