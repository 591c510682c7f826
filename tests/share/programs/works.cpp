// Linked with libcuda.so.1. Works on the card in ways that programs have, and prints what came out:
// the same however often its memory leaves the card and comes back.
//   works KIND [STEPS]
//   works rounds MIB COUNT    also: leaves (with its memory in use), resets (its context, between
//   works grows MIB COUNT     two times of it), grows (one allocation after the other), spins
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "driver/table.h"

namespace {

using Words = std::vector<unsigned>;
constexpr size_t kPage = size_t{2} << 20;

vramkit::DriverTable call;
CUcontext context;
CUmodule module_;
CUfunction fill, add, sweep, checksum;

void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    printf("%s: %d\n", what, result);
    fflush(stdout);
    _exit(3);
}
#define CALL(name, ...) check(call.name(__VA_ARGS__), #name)

template <class Function>
void find(Function& field, const char* name, const char* per_thread) {
    void* function = per_thread != nullptr ? dlsym(RTLD_DEFAULT, per_thread) : nullptr;
    if (function == nullptr) function = dlsym(RTLD_DEFAULT, name);
    field = reinterpret_cast<Function>(function);
}

// With per-thread default streams as a program that is compiled for them calls.
void find_calls(bool per_thread) {
#define VRAMKIT_FORM_none(symbol) nullptr
#define VRAMKIT_FORM_ptsz(symbol) per_thread ? #symbol "_ptsz" : nullptr
#define VRAMKIT_FORM_ptds(symbol) per_thread ? #symbol "_ptds" : nullptr
#define VRAMKIT_FIND_required(symbol, suffix) \
    find(call.symbol, #symbol, VRAMKIT_FORM_##suffix(symbol));
#define VRAMKIT_FIND_optional(symbol, suffix) VRAMKIT_FIND_required(symbol, suffix)
#define VRAMKIT_FIND_answered(symbol, suffix)
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) VRAMKIT_FIND_##need(symbol, suffix)
#include "driver/manifest.def"
}

template <class Function>
Function* other(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

void begin() {
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    FILE* file = fopen(getenv("KERNELS"), "r");
    static char text[1 << 20];
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    CALL(cuModuleLoadData, &module_, text);
    CALL(cuModuleGetFunction, &fill, module_, "vk_fill");
    CALL(cuModuleGetFunction, &add, module_, "vk_add");
    CALL(cuModuleGetFunction, &sweep, module_, "vk_sweep");
    CALL(cuModuleGetFunction, &checksum, module_, "vk_checksum");
}

template <class... Arguments>
void launch(CUfunction function, CUstream stream, Arguments... arguments) {
    unsigned long long values[] = {static_cast<unsigned long long>(arguments)...};
    void* parameters[sizeof...(arguments)];
    for (size_t i = 0; i < sizeof...(arguments); ++i) parameters[i] = &values[i];
    CALL(cuLaunchKernel, function, 2, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr);
}

struct Block {
    CUdeviceptr address;
    size_t bytes;
    bool mapped;  // by the program itself, in handles of 2 MiB
    std::vector<CUmemGenericAllocationHandle> handles;
};

Block allocate(size_t bytes) {
    Block block{0, bytes, false, {}};
    CALL(cuMemAlloc_v2, &block.address, bytes);
    return block;
}

Block map(size_t pages) {
    Block block{0, pages * kPage, true, {}};
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CALL(cuMemAddressReserve, &block.address, block.bytes, 0, 0, 0);
    for (size_t page = 0; page < pages; ++page) {
        CUmemGenericAllocationHandle handle;
        CALL(cuMemCreate, &handle, kPage, &kind, 0);
        CALL(cuMemMap, block.address + page * kPage, kPage, 0, handle, 0);
        block.handles.push_back(handle);
    }
    CALL(cuMemSetAccess, block.address, block.bytes, &access, 1);
    return block;
}

void give_back(Block& block) {
    if (!block.mapped) {
        CALL(cuMemFree_v2, block.address);
        return;
    }
    CALL(cuMemUnmap, block.address, block.bytes);
    for (auto handle : block.handles) CALL(cuMemRelease, handle);
    CALL(cuMemAddressFree, block.address, block.bytes);
}

thread_local CUdeviceptr out = 0;  // of sum()

unsigned long long sum(const Block& block, CUstream stream) {
    if (out == 0) CALL(cuMemAlloc_v2, &out, 8);
    unsigned long long result = 0;
    CALL(cuMemsetD8Async, out, 0, 8, stream);
    launch(checksum, stream, block.address, block.bytes / 4, out);
    CALL(cuMemcpyDtoHAsync_v2, &result, out, 8, stream);
    CALL(cuStreamSynchronize, stream);
    return result;
}

// Random work in one stream of each thread: what each block has is known only to the card.
void at_random(unsigned seed, int steps, bool own_memory, std::string& said) {
    std::mt19937 random(seed);
    CUstream stream = nullptr;
    if (seed % 2 == 0) CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    std::vector<Block> blocks;
    const auto any = [&]() -> Block& { return blocks[random() % blocks.size()]; };
    for (int step = 0; step < steps; ++step) {
        const unsigned what = blocks.size() < 2 ? 0 : random() % 12;
        if (what < 2 && blocks.size() < 12) {
            const size_t bytes = (random() % 64 + 1) * (random() % 3 == 0 ? 256 << 10 : 512);
            blocks.push_back(own_memory && random() % 2 == 0 ? map(random() % 3 + 1)
                                                             : allocate(bytes));
            Block& made = blocks.back();
            launch(fill, stream, made.address, made.bytes / 4, random());
        } else if (what < 5) {
            Block& to = any();
            const Block &one = any(), &two = any();
            size_t bytes = to.bytes;
            if (one.bytes < bytes) bytes = one.bytes;
            if (two.bytes < bytes) bytes = two.bytes;
            launch(add, stream, to.address, one.address, two.address, bytes / 4);
        } else if (what < 6) {
            Block& to = any();
            launch(sweep, stream, to.address, to.bytes / 4, random() % 3 + 1);
        } else if (what < 7) {
            Block& to = any();
            CALL(cuMemsetD32Async, to.address, random(), to.bytes / 8, stream);
        } else if (what < 8) {
            Block& to = any();
            Words words(to.bytes / 8, random());
            CALL(cuMemcpyHtoDAsync_v2, to.address, words.data(), words.size() * 4, stream);
            CALL(cuStreamSynchronize, stream);
        } else if (what < 9) {
            Block &to = any(), &from = any();
            const size_t bytes = to.bytes < from.bytes ? to.bytes : from.bytes;
            if (&to != &from) CALL(cuMemcpyDtoDAsync_v2, to.address, from.address, bytes, stream);
        } else if (what < 11) {
            char text[32];
            snprintf(text, sizeof text, "%llx\n", sum(any(), stream));
            said += text;
        } else {
            const size_t index = random() % blocks.size();
            CALL(cuStreamSynchronize, stream);  // that cuMemFree waits is not documented
            give_back(blocks[index]);
            blocks.erase(blocks.begin() + index);
        }
    }
    for (Block& block : blocks) {
        char text[32];
        snprintf(text, sizeof text, "%llx\n", sum(block, stream));
        said += text;
        give_back(block);
    }
    CALL(cuStreamSynchronize, stream);
}

// A graph that adds, replayed among other work; its memory stays where it was captured.
void graphs(int steps) {
    auto* begin_capture = other<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2");
    auto* end_capture = other<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture");
    auto* instantiate =
        other<CUresult(CUgraphExec*, CUgraph, unsigned long long)>("cuGraphInstantiateWithFlags");
    auto* replay = other<CUresult(CUgraphExec, CUstream)>("cuGraphLaunch");
    CUstream stream, beside;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    CALL(cuStreamCreateWithPriority, &beside, CU_STREAM_NON_BLOCKING, 0);
    Block one = allocate(3 << 20), two = allocate(1 << 20), apart = allocate(1 << 20);
    launch(fill, stream, one.address, one.bytes / 4, 1);
    launch(fill, stream, two.address, two.bytes / 4, 5);
    launch(fill, beside, apart.address, apart.bytes / 4, 7);
    CUgraph graph;
    CUgraphExec executable;
    check(begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    for (int turn = 0; turn < 20; ++turn) {
        launch(add, stream, one.address, one.address, two.address, two.bytes / 4);
        CALL(cuMemcpyDtoDAsync_v2, one.address + two.bytes, one.address, two.bytes, stream);
        launch(sweep, beside, apart.address, apart.bytes / 4, 1);  // not part of the graph
    }
    check(end_capture(stream, &graph), "cuStreamEndCapture");
    check(instantiate(&executable, graph, 0), "cuGraphInstantiate");
    for (int step = 0; step < steps; ++step) check(replay(executable, stream), "cuGraphLaunch");
    printf("%llx %llx %llx\n", sum(one, stream), sum(two, stream), sum(apart, beside));
}

// Allocations that other contexts take with them, and what is asked about addresses.
void contexts() {
    auto* create = other<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2");
    auto* destroy = other<CUresult(CUcontext)>("cuCtxDestroy_v2");
    auto* range = other<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>("cuMemGetAddressRange_v2");
    size_t before = 0, during = 0, after = 0, total = 0;
    CALL(cuMemGetInfo_v2, &before, &total);
    CUcontext second;
    check(create(&second, 0, 0), "cuCtxCreate");
    Block block = allocate(32 << 20);
    CUcontext owner;
    CUdeviceptr base;
    size_t bytes;
    unsigned type = 0;
    CALL(cuPointerGetAttribute, &owner, CU_POINTER_ATTRIBUTE_CONTEXT, block.address + 100);
    CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block.address);
    check(range(&base, &bytes, block.address + 12345), "cuMemGetAddressRange");
    printf("%d %u %d %zu\n", owner == second, type, base == block.address, bytes);
    CALL(cuMemGetInfo_v2, &during, &total);
    check(destroy(second), "cuCtxDestroy");
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemGetInfo_v2, &after, &total);
    printf("%zu %d\n", before - during, before == after);
    printf("%d\n", call.cuMemFree_v2(block.address));
}

void out_of_memory() {
    size_t free = 0, total = 0;
    CALL(cuMemGetInfo_v2, &free, &total);
    CUdeviceptr address = 0;
    printf("%d %d\n", call.cuMemAlloc_v2(&address, total + 1), call.cuMemAlloc_v2(&address, 0));
    CALL(cuMemAlloc_v2, &address, free / 2);
    CUdeviceptr second = 0;
    printf("%d\n", call.cuMemAlloc_v2(&second, free / 4 * 3));
    CALL(cuMemFree_v2, address);
    CALL(cuMemAlloc_v2, &second, free / 4 * 3);
    CALL(cuMemFree_v2, second);
    printf("%d\n", call.cuMemFree_v2(second));
}

// Random work on stream-ordered blocks in several streams. A block goes to another stream behind an
// event, and is freed in whatever stream had it last.
void async_at_random(unsigned seed, int steps, std::string& said) {
    struct Ordered {
        CUdeviceptr address;
        size_t bytes;
        size_t stream;
    };
    std::mt19937 random(seed);
    std::vector<CUstream> streams{nullptr, nullptr, nullptr};
    for (size_t index = seed % 2; index < streams.size(); ++index) {
        CALL(cuStreamCreateWithPriority, &streams[index], CU_STREAM_NON_BLOCKING, 0);
    }
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool own, usual;
    CALL(cuMemPoolCreate, &own, &properties);
    CALL(cuDeviceGetDefaultMemPool, &usual, 0);
    CUevent event;
    CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    std::vector<Ordered> blocks;
    const auto any = [&]() -> Ordered& { return blocks[random() % blocks.size()]; };
    const auto bring = [&](Ordered& block, size_t stream) {
        if (block.stream == stream) return;
        CALL(cuEventRecord, event, streams[block.stream]);
        CALL(cuStreamWaitEvent, streams[stream], event, 0);
        block.stream = stream;
    };
    const auto say = [&](Ordered& block) {
        char text[32];
        const Block whole{block.address, block.bytes, false, {}};
        // sum() has memory of its own for all streams.
        for (CUstream stream : streams) CALL(cuStreamSynchronize, stream);
        snprintf(text, sizeof text, "%llx\n", sum(whole, streams[block.stream]));
        said += text;
    };
    for (int step = 0; step < steps; ++step) {
        const unsigned what = blocks.size() < 2 ? 0 : random() % 12;
        if (what < 3 && blocks.size() < 16) {
            const size_t stream = random() % streams.size();
            Ordered made{0, (random() % 64 + 1) * (random() % 4 == 0 ? 128 << 10 : 512), stream};
            if (random() % 3 == 0) {
                CALL(cuMemAllocFromPoolAsync, &made.address, made.bytes, own, streams[stream]);
            } else {
                CALL(cuMemAllocAsync, &made.address, made.bytes, streams[stream]);
            }
            launch(fill, streams[stream], made.address, made.bytes / 4, random());
            blocks.push_back(made);
        } else if (what < 6) {
            Ordered &to = any(), &from = any();
            const size_t bytes = to.bytes < from.bytes ? to.bytes : from.bytes;
            const size_t stream = random() % streams.size();
            bring(to, stream);
            bring(from, stream);
            launch(add, streams[stream], to.address, from.address, to.address, bytes / 4);
        } else if (what < 8) {
            Ordered& to = any();
            launch(sweep, streams[to.stream], to.address, to.bytes / 4, random() % 3 + 1);
        } else if (what < 9) {
            say(any());
        } else if (what < 10 && random() % 4 == 0) {
            CALL(cuMemPoolTrimTo, random() % 2 == 0 ? own : usual, 0);
        } else {
            const size_t index = random() % blocks.size();
            CALL(cuMemFreeAsync, blocks[index].address, streams[blocks[index].stream]);
            blocks.erase(blocks.begin() + index);
        }
        // A stream goes with all it had; what it freed is used again.
        if (step % 50 == 49) {
            for (Ordered& block : blocks) bring(block, 1);
            CALL(cuStreamDestroy_v2, streams[2]);
            CALL(cuStreamCreateWithPriority, &streams[2], CU_STREAM_NON_BLOCKING, 0);
        }
    }
    for (Ordered& block : blocks) {
        say(block);
        CALL(cuMemFreeAsync, block.address, streams[block.stream]);
    }
    for (CUstream stream : streams) CALL(cuStreamSynchronize, stream);
    CALL(cuMemPoolDestroy, own);
}

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
    auto* begin_capture = other<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2");
    auto* end_capture = other<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture");
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    CUdeviceptr before, inside = 0;
    CALL(cuMemAllocAsync, &before, 1 << 20, stream);
    launch(fill, stream, before, (1 << 20) / 4, 3);
    CUgraph graph = nullptr;
    check(begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    const CUresult made = call.cuMemAllocAsync(&inside, 4096, stream);
    for (int step = 0; step < steps; ++step) {
        launch(sweep, stream, before, (1 << 20) / 4, 1);
    }
    printf("%d %d\n", made, end_capture(stream, &graph));
    CALL(cuStreamSynchronize, stream);
    printf("%llx\n", sum(Block{before, 1 << 20, false, {}}, stream));
    CALL(cuMemFreeAsync, before, stream);
    CALL(cuStreamSynchronize, stream);
}

// Copies of boxes between pitched memory, plain memory and the host; sets of boxes; copies in
// batches.
void boxes(int steps) {
    auto* pitched =
        other<CUresult(CUdeviceptr*, size_t*, size_t, size_t, unsigned)>("cuMemAllocPitch_v2");
    auto* copy_2d = other<CUresult(const CUDA_MEMCPY2D*, CUstream)>("cuMemcpy2DAsync_v2");
    auto* copy_2d_now = other<CUresult(const CUDA_MEMCPY2D*)>("cuMemcpy2DUnaligned_v2");
    auto* copy_3d = other<CUresult(const CUDA_MEMCPY3D*, CUstream)>("cuMemcpy3DAsync_v2");
    auto* set_2d = other<CUresult(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream)>(
        "cuMemsetD2D32Async");
    auto* batch = other<CUresult(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                                 size_t*, size_t, CUstream)>("cuMemcpyBatchAsync_v2");
    constexpr size_t kWidth = 1000, kHeight = 600;
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    std::mt19937 random(11);
    CUdeviceptr wide;
    size_t pitch = 0;
    check(pitched(&wide, &pitch, kWidth, kHeight, 4), "cuMemAllocPitch");
    Block rows{wide, pitch * kHeight, false, {}}, plain = allocate(4 << 20),
                                                  other_ = allocate(4 << 20);
    for (const Block& each : {rows, plain, other_}) {
        launch(fill, stream, each.address, each.bytes / 4, random());
    }
    Words host(kWidth * kHeight / 4, 0);
    for (int step = 0; step < steps; ++step) {
        const size_t width = (random() % (kWidth / 4) + 1) * 4, height = random() % kHeight + 1;
        CUDA_MEMCPY2D flat{};
        flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        flat.WidthInBytes = width;
        flat.Height = height;
        switch (random() % 6) {
            case 0:
                flat.srcDevice = plain.address, flat.srcPitch = width;
                flat.dstDevice = wide, flat.dstPitch = pitch;
                check(copy_2d(&flat, stream), "cuMemcpy2DAsync");
                break;
            case 1:
                CALL(cuStreamSynchronize, stream);
                flat.srcDevice = wide, flat.srcPitch = pitch;
                flat.dstMemoryType = CU_MEMORYTYPE_HOST;
                flat.dstHost = host.data(), flat.dstPitch = width;
                check(copy_2d_now(&flat), "cuMemcpy2DUnaligned");
                printf("%x %x\n", host[0], host[width * height / 4 - 1]);
                break;
            case 2: {
                CUDA_MEMCPY3D box{};
                box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
                box.srcDevice = plain.address, box.srcPitch = 256, box.srcHeight = 64;
                box.dstDevice = other_.address, box.dstPitch = 512, box.dstHeight = 32;
                box.WidthInBytes = random() % 256 + 1, box.Height = random() % 32 + 1;
                box.Depth = random() % 16 + 1;
                check(copy_3d(&box, stream), "cuMemcpy3DAsync");
                break;
            }
            case 3:
                check(set_2d(wide, pitch, random(), width / 4, height, stream),
                      "cuMemsetD2D32Async");
                break;
            case 4: {
                CUdeviceptr to[3], from[3];
                size_t sizes[3], first = 0;
                for (size_t index = 0; index < 3; ++index) {
                    to[index] = plain.address + (index << 20);
                    from[index] = other_.address + (random() % 4 << 20);
                    sizes[index] = (random() % (1 << 18) + 1) * 4;
                }
                CUmemcpyAttributes kind{};
                kind.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
                check(batch(to, from, sizes, 3, &kind, &first, 1, stream), "cuMemcpyBatchAsync");
                break;
            }
            default:
                launch(sweep, stream, other_.address, other_.bytes / 4, 1);
        }
        if (step % 8 == 7) {
            printf("%llx %llx\n", sum(plain, stream), sum(other_, stream));
        }
    }
    CALL(cuStreamSynchronize, stream);
    for (Block each : {rows, plain, other_}) give_back(each);
}

// Blocks that one thread makes in its stream, and another one uses and frees in its own.
struct Hand {
    unsigned seed;
    std::vector<CUdeviceptr> blocks;
    std::vector<CUevent> events;
    std::vector<unsigned long long> sums;
    std::atomic<size_t> made{0};
};
constexpr size_t kHandedBytes = 96 << 10;

void* makes(void* given) {
    auto* hand = static_cast<Hand*>(given);
    CUstream stream;
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    for (size_t index = 0; index < hand->blocks.size(); ++index) {
        CALL(cuMemAllocAsync, &hand->blocks[index], kHandedBytes, stream);
        launch(fill, stream, hand->blocks[index], kHandedBytes / 4, hand->seed + index);
        CALL(cuEventCreate, &hand->events[index], CU_EVENT_DISABLE_TIMING);
        CALL(cuEventRecord, hand->events[index], stream);
        hand->made = index + 1;
    }
    CALL(cuStreamSynchronize, stream);
    CALL(cuStreamDestroy_v2, stream);
    return nullptr;
}

void* takes(void* given) {
    auto* hand = static_cast<Hand*>(given);
    CUstream stream;
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    for (size_t index = 0; index < hand->blocks.size(); ++index) {
        while (hand->made <= index) sched_yield();
        CALL(cuStreamWaitEvent, stream, hand->events[index], 0);
        hand->sums[index] = sum(Block{hand->blocks[index], kHandedBytes, false, {}}, stream);
        CALL(cuMemFreeAsync, hand->blocks[index], stream);
    }
    CALL(cuStreamSynchronize, stream);
    return nullptr;
}

void handed(int steps) {
    Hand hands[2];
    pthread_t threads[4];
    for (unsigned index = 0; index < 2; ++index) {
        hands[index].seed = index * 1000;
        hands[index].blocks.resize(steps);
        hands[index].events.resize(steps);
        hands[index].sums.resize(steps);
        pthread_create(&threads[2 * index], nullptr, &makes, &hands[index]);
        pthread_create(&threads[2 * index + 1], nullptr, &takes, &hands[index]);
    }
    for (pthread_t each : threads) pthread_join(each, nullptr);
    for (const Hand& each : hands) {
        for (unsigned long long value : each.sums) printf("%llx\n", value);
    }
}

// Streams of a context that is not the primary one, and a reset of the device.
void async_contexts() {
    auto* create = other<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2");
    auto* destroy = other<CUresult(CUcontext)>("cuCtxDestroy_v2");
    auto* reset = other<CUresult(CUdevice)>("cuDevicePrimaryCtxReset_v2");
    CUcontext second;
    CUstream apart;
    CUdeviceptr one, two, three;
    CALL(cuMemAllocAsync, &one, 1 << 20, nullptr);
    launch(fill, nullptr, one, (1 << 20) / 4, 3);
    CALL(cuCtxSynchronize);
    check(create(&second, 0, 0), "cuCtxCreate");
    CALL(cuStreamCreateWithPriority, &apart, CU_STREAM_NON_BLOCKING, 0);
    CALL(cuMemAllocAsync, &two, 1 << 20, apart);
    CALL(cuMemAllocAsync, &three, 1 << 20, nullptr);
    CALL(cuMemsetD32Async, two, 5, (1 << 20) / 4, apart);
    CALL(cuMemcpyDtoDAsync_v2, two, one, 1 << 19, apart);
    Words words((1 << 20) / 4);
    CALL(cuMemcpyDtoHAsync_v2, words.data(), two, 1 << 20, apart);
    CALL(cuMemFreeAsync, one, apart);
    CALL(cuStreamSynchronize, apart);
    printf("%u %u %u\n", words[0], words[words.size() / 2 - 1], words.back());
    CALL(cuMemFreeAsync, two, apart);
    CALL(cuMemFree_v2, three);
    CALL(cuStreamDestroy_v2, apart);
    check(destroy(second), "cuCtxDestroy");
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAllocAsync, &one, 1 << 20, nullptr);
    check(reset(0), "cuDevicePrimaryCtxReset");
    begin();
    printf("%d\n", call.cuMemFreeAsync(one, nullptr) != CUDA_SUCCESS);
    std::string said;
    async_at_random(3, 60, said);
    fputs(said.c_str(), stdout);
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

// Blocks of two cards, each freed in a stream of the other one.
void two_cards(int steps) {
    CUcontext contexts[2] = {context, nullptr};
    CUstream streams[2];
    CALL(cuDevicePrimaryCtxRetain, &contexts[1], 1);
    for (int card : {0, 1}) {
        CALL(cuCtxSetCurrent, contexts[card]);
        CALL(cuStreamCreateWithPriority, &streams[card], CU_STREAM_NON_BLOCKING, 0);
    }
    CUevent events[2];
    for (int card : {0, 1}) {
        CALL(cuCtxSetCurrent, contexts[card]);
        CALL(cuEventCreate, &events[card], CU_EVENT_DISABLE_TIMING);
    }
    for (int step = 0; step < steps; ++step) {
        CUdeviceptr blocks[2];
        CALL(cuCtxSetCurrent, contexts[step % 2]);
        for (int card : {0, 1}) {
            CALL(cuMemAllocAsync, &blocks[card], 3 << 20, streams[card]);
            CALL(cuMemsetD32Async, blocks[card], step + card, (3 << 20) / 4, streams[card]);
        }
        for (int card : {0, 1}) {
            unsigned word = 0;
            int device = -1;
            CALL(cuCtxSetCurrent, contexts[card]);
            CALL(cuMemcpyDtoHAsync_v2, &word, blocks[card] + 4000, 4, streams[card]);
            CALL(cuEventRecord, events[card], streams[card]);
            CALL(cuStreamSynchronize, streams[card]);
            CALL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                 blocks[card] + 9);
            printf("%u %d\n", word, device);
            CALL(cuStreamWaitEvent, streams[1 - card], events[card], 0);
            CALL(cuMemFreeAsync, blocks[card], streams[1 - card]);
        }
    }
    for (int card : {0, 1}) CALL(cuStreamSynchronize, streams[card]);
}

// Memory that was never used before: each call here is the first that uses it.
void first_uses() {
    auto* copy_2d = other<CUresult(const CUDA_MEMCPY2D*, CUstream)>("cuMemcpy2DAsync_v2");
    auto* copy_2d_now = other<CUresult(const CUDA_MEMCPY2D*)>("cuMemcpy2D_v2");
    auto* copy_3d = other<CUresult(const CUDA_MEMCPY3D*, CUstream)>("cuMemcpy3DAsync_v2");
    auto* set_2d =
        other<CUresult(CUdeviceptr, size_t, unsigned, size_t, size_t)>("cuMemsetD2D32_v2");
    auto* peer =
        other<CUresult(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)>("cuMemcpyPeer");
    auto* batch = other<CUresult(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                                 size_t*, size_t, CUstream)>("cuMemcpyBatchAsync_v2");
    auto* batch_3d = other<CUresult(size_t, CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream)>(
        "cuMemcpy3DBatchAsync_v2");
    constexpr size_t kBytes = 3 << 20, kWidth = 1024;
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    for (int turn = 0; turn < 7; ++turn) {
        Words words(kBytes / 4, 0);
        for (size_t index = 0; index < words.size(); ++index) words[index] = index * 7 + turn;
        Block from = allocate(kBytes), to{};
        CALL(cuMemcpyHtoDAsync_v2, from.address, words.data(), kBytes, stream);
        CALL(cuCtxSynchronize);
        to = allocate(kBytes);
        CUDA_MEMCPY2D flat{};
        flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        flat.srcDevice = from.address, flat.dstDevice = to.address;
        flat.srcPitch = flat.dstPitch = flat.WidthInBytes = kWidth;
        flat.Height = kBytes / kWidth;
        CUDA_MEMCPY3D box{};
        box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        box.srcDevice = from.address, box.dstDevice = to.address;
        box.srcPitch = box.dstPitch = box.WidthInBytes = kWidth;
        box.srcHeight = box.dstHeight = box.Height = kBytes / kWidth / 3;
        box.Depth = 3;
        CUmemcpyAttributes kind{};
        kind.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        size_t bytes = kBytes, first = 0;
        CUDA_MEMCPY3D_BATCH_OP operation{};
        operation.src.type = operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        operation.src.op.ptr = {
            from.address, kWidth, kBytes / kWidth, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
        operation.dst.op.ptr = {
            to.address, kWidth, kBytes / kWidth, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
        operation.extent = {kWidth, kBytes / kWidth, 1};
        operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        CUresult result = CUDA_SUCCESS;
        if (turn == 0) result = copy_2d(&flat, stream);
        if (turn == 1) result = copy_2d_now(&flat);
        if (turn == 2) result = copy_3d(&box, stream);
        if (turn == 3) result = set_2d(to.address, kWidth, 9, kWidth / 4, kBytes / kWidth);
        if (turn == 4) result = peer(to.address, context, from.address, context, kBytes);
        if (turn == 5) {
            result = batch(&to.address, &from.address, &bytes, 1, &kind, &first, 1, stream);
        }
        if (turn == 6) result = batch_3d(1, &operation, 0, stream);
        CALL(cuCtxSynchronize);
        printf("%d %d %llx\n", turn, result, sum(to, stream));
        give_back(from);
        give_back(to);
    }
}

// Streams that end while their work still runs; the next one has the same handle, perhaps.
void streams_end(int steps) {
    CUdeviceptr kept = 0;
    CALL(cuMemAllocAsync, &kept, 4 * steps, nullptr);
    CALL(cuMemsetD8Async, kept, 0, 4 * steps, nullptr);
    CALL(cuCtxSynchronize);
    for (int step = 0; step < steps; ++step) {
        CUstream stream;
        CUdeviceptr block, small;
        CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
        CALL(cuMemAllocAsync, &block, 4 << 20, stream);
        CALL(cuMemAllocAsync, &small, 2000, stream);
        launch(fill, stream, block, (4 << 20) / 4, step);
        launch(sweep, stream, block, (4 << 20) / 4, 200);
        launch(fill, stream, small, 500, step);
        CALL(cuMemcpyDtoDAsync_v2, kept + 4 * step, block + (1 << 20), 4, stream);
        CALL(cuMemFreeAsync, block, stream);
        CALL(cuMemFreeAsync, small, stream);
        CALL(cuStreamDestroy_v2, stream);
    }
    CALL(cuCtxSynchronize);
    Words words(steps);
    CALL(cuMemcpyDtoH_v2, words.data(), kept, 4 * steps);
    for (unsigned word : words) printf("%x\n", word);
}

// Misuse, and what cannot be had of memory that moves. Natively some of it can.
void misuse() {
    Block mapped = map(1);
    printf("%d\n", call.cuMemAddressFree(mapped.address, mapped.bytes));
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle;
    CALL(cuMemCreate, &handle, kPage, &kind, 0);
    CUdeviceptr range;
    CALL(cuMemAddressReserve, &range, kPage, 0, 0, 0);
    const CUresult beyond = call.cuMemMap(range + kPage, kPage, 0, handle, 0);
    CALL(cuMemAddressFree, range, kPage);
    const CUresult freed = call.cuMemMap(range, kPage, 0, handle, 0);
    printf("%d %d %d\n", beyond, freed, call.cuMemMap(0x1000000, kPage, 0, handle, 0));
    CALL(cuMemRelease, handle);
    give_back(mapped);
}

struct Thread {
    pthread_t id;
    bool ordered;  // stream-ordered memory
    unsigned seed;
    int steps;
    std::string said;
};

void* of_thread(void* given) {
    auto* thread = static_cast<Thread*>(given);
    CALL(cuCtxSetCurrent, context);
    if (thread->ordered) {
        async_at_random(thread->seed, thread->steps, thread->said);
    } else {
        at_random(thread->seed, thread->steps, true, thread->said);
    }
    return nullptr;
}

void threads(int count, int steps, bool ordered) {
    std::vector<Thread> all(count);
    for (int index = 0; index < count; ++index) {
        all[index].seed = index;
        all[index].steps = steps;
        all[index].ordered = ordered;
        pthread_create(&all[index].id, nullptr, &of_thread, &all[index]);
    }
    for (Thread& each : all) {
        pthread_join(each.id, nullptr);
        fputs(each.said.c_str(), stdout);
    }
}

// Works on so many MiB until it has made so many rounds: what comes out says how many those were.
void rounds(int mebibytes, int count) {
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    std::vector<Block> blocks;
    for (int index = 0; index < 4; ++index) {
        blocks.push_back(allocate((size_t(mebibytes) << 20) / 4));
        launch(fill, stream, blocks.back().address, blocks.back().bytes / 4, index);
    }
    puts("begins");
    fflush(stdout);
    for (int round = 0; round < count; ++round) {
        const size_t words = blocks[0].bytes / 4;
        for (int index = 0; index < 4; ++index) {
            launch(add, stream, blocks[index].address, blocks[index].address,
                   blocks[(index + 1) % 4].address, words);
        }
        CALL(cuStreamSynchronize, stream);
    }
    for (Block& block : blocks) {
        printf("%llx\n", sum(block, stream));
        give_back(block);
    }
}

// Allocates one block after the other, and works on all that it has so far.
void grows(int mebibytes, int count) {
    std::vector<Block> blocks;
    for (int index = 0; index < 4; ++index) {
        blocks.push_back(allocate((size_t(mebibytes) << 20) / 4));
        launch(fill, nullptr, blocks.back().address, blocks.back().bytes / 4, index);
        for (int round = 0; round < count; ++round) {
            for (Block& to : blocks) {
                launch(add, nullptr, to.address, to.address, blocks[0].address, to.bytes / 4);
            }
            CALL(cuStreamSynchronize, nullptr);
        }
    }
    for (Block& block : blocks) printf("%llx\n", sum(block, nullptr));
}

// Has a kernel on the card that does not end for so many seconds, while it has this memory.
void spins(int mebibytes, int seconds) {
    auto* get = other<CUresult(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction");
    CUfunction spin;
    check(get(&spin, module_, "vk_spin"), "cuModuleGetFunction");
    Block block = allocate(size_t(mebibytes) << 20);
    launch(fill, nullptr, block.address, block.bytes / 4, 3);
    launch(spin, nullptr, seconds * 1000000000ull);
    puts("begins");
    fflush(stdout);
    printf("%llx\n", sum(block, nullptr));
}

}  // namespace

int main(int count, char** words) {
    const std::string kind = words[1];
    const int steps = count > 2 ? atoi(words[2]) : 300;
    find_calls(kind == "per_thread_streams" || kind == "async_per_thread_streams");
    if (kind == "fork_first") {
        if (fork() == 0) return 0;
        wait(nullptr);
    }
    begin();
    std::string said;
    if (kind == "memory" || kind == "fork_first") at_random(2, steps, false, said);
    if (kind == "mappings") at_random(4, steps, true, said);
    if (kind == "default_stream") at_random(1, steps, true, said);
    if (kind == "threads" || kind == "per_thread_streams") threads(4, steps, false);
    if (kind == "async") async_at_random(2, steps, said);
    if (kind == "async_threads" || kind == "async_per_thread_streams") threads(4, steps, true);
    if (kind == "pools") pools();
    if (kind == "graph_memory") graph_memory(steps);
    if (kind == "boxes") boxes(steps);
    if (kind == "unused") unused(steps);
    if (kind == "two_cards") two_cards(steps);
    if (kind == "first_uses") first_uses();
    if (kind == "streams_end") streams_end(steps);
    if (kind == "misuse") misuse();
    if (kind == "handed") handed(steps);
    if (kind == "async_contexts") async_contexts();
    if (kind == "counted") counted();
    if (kind == "warm_pairs") warm_pairs(steps);
    if (kind == "async_exit") {
        // Ends in the middle of everything.
        static Hand& hand = *new Hand;
        hand.seed = 0;
        hand.blocks.resize(100000);
        hand.sums.resize(100000);
        hand.events.resize(100000);
        pthread_t threads[2];
        pthread_create(&threads[0], nullptr, &makes, &hand);
        pthread_create(&threads[1], nullptr, &takes, &hand);
        while (hand.made < static_cast<size_t>(steps)) sched_yield();
        exit(0);
    }
    if (kind == "async_fork") {
        CUdeviceptr address = 0;
        CALL(cuMemAllocAsync, &address, 4096, nullptr);
        const pid_t child = fork();
        if (child == 0) {
            const bool refused = call.cuMemAllocAsync(&address, 4096, nullptr) != CUDA_SUCCESS &&
                                 call.cuMemFreeAsync(address, nullptr) != CUDA_SUCCESS &&
                                 call.cuMemFree_v2(address) != CUDA_SUCCESS;
            exit(refused ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d\n", status);
        async_at_random(6, steps, said);
    }
    if (kind == "graphs") graphs(steps);
    if (kind == "rounds") rounds(steps, atoi(words[3]));
    if (kind == "leaves" || kind == "resets") {
        const int count_of_rounds = atoi(words[3]);
        if (kind == "resets") {
            rounds(steps, count_of_rounds);
            check(other<CUresult(CUdevice)>("cuDevicePrimaryCtxReset_v2")(0), "reset");
            out = 0;
            begin();
        }
        rounds(steps, count_of_rounds);
        allocate(size_t(steps) << 20);
        fflush(stdout);
        _exit(0);
    }
    if (kind == "grows") grows(steps, atoi(words[3]));
    if (kind == "spins") spins(steps, atoi(words[3]));
    if (kind == "contexts") contexts();
    if (kind == "out_of_memory") out_of_memory();
    if (kind == "fork_after") {
        at_random(2, steps, false, said);
        const pid_t child = fork();
        if (child == 0) {
            CUdeviceptr address = 0;
            const bool refused = call.cuMemAlloc_v2(&address, 4096) != CUDA_SUCCESS;
            _exit(refused ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d\n", status);
        at_random(6, steps, false, said);
    }
    if (kind == "exec") {
        at_random(2, 10, false, said);
        words[1] = const_cast<char*>("memory");
        execv(words[0], words);
    }
    fputs(said.c_str(), stdout);
    if (getenv("CALLS") != nullptr) say_calls();
    return 0;
}
