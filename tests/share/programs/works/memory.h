// Memory of cuMemAlloc and of handles: worked on at random, in graphs, in boxes, for the first
// time, in the wrong way, and up to its end.
#pragma once

#include <random>

#include "card.h"

namespace {

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
    const GraphCalls graphs;
    CUstream stream, beside;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    CALL(cuStreamCreateWithPriority, &beside, CU_STREAM_NON_BLOCKING, 0);
    Block one = allocate(3 << 20), two = allocate(1 << 20), apart = allocate(1 << 20);
    launch(fill, stream, one.address, one.bytes / 4, 1);
    launch(fill, stream, two.address, two.bytes / 4, 5);
    launch(fill, beside, apart.address, apart.bytes / 4, 7);
    CUgraph graph;
    CUgraphExec executable;
    check(graphs.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    for (int turn = 0; turn < 20; ++turn) {
        launch(add, stream, one.address, one.address, two.address, two.bytes / 4);
        CALL(cuMemcpyDtoDAsync_v2, one.address + two.bytes, one.address, two.bytes, stream);
        launch(sweep, beside, apart.address, apart.bytes / 4, 1);  // not part of the graph
    }
    check(graphs.end_capture(stream, &graph), "cuStreamEndCapture");
    check(graphs.instantiate(&executable, graph, 0), "cuGraphInstantiate");
    for (int step = 0; step < steps; ++step)
        check(graphs.replay(executable, stream), "cuGraphLaunch");
    printf("%llx %llx %llx\n", sum(one, stream), sum(two, stream), sum(apart, beside));
}

// A graph whose memory is allocated while it is captured, as PyTorch's private pools do: sets and
// copies are recorded with addresses that the driver looks at.
void graph_allocates(int steps) {
    const GraphCalls graphs;
    CUstream stream;
    CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 0);
    Block total = allocate(1 << 20);
    launch(fill, stream, total.address, total.bytes / 4, 3);
    CUgraph graph;
    CUgraphExec executable;
    check(graphs.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    Block one = allocate(3 << 20);
    CALL(cuMemsetD8Async, one.address, 1, one.bytes, stream);
    Block two = map(1);
    CALL(cuMemcpyDtoDAsync_v2, two.address, one.address, two.bytes, stream);
    launch(add, stream, total.address, total.address, two.address, total.bytes / 4);
    check(graphs.end_capture(stream, &graph), "cuStreamEndCapture");
    check(graphs.instantiate(&executable, graph, 0), "cuGraphInstantiate");
    for (int step = 0; step < steps; ++step)
        check(graphs.replay(executable, stream), "cuGraphLaunch");
    printf("%llx %llx %llx\n", sum(one, stream), sum(two, stream), sum(total, stream));
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

// Pages of handles that are made for more than this process, as PyTorch and JAX make them where the
// card has RDMA ("shareable"), or with memory of another kind ("compressible").
void handles(const std::string& which, int steps) {
    CUmemAllocationProp kind = plain_kind();
    if (which == "shareable") {
        kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        kind.allocFlags.gpuDirectRDMACapable = 1;
    } else {
        kind.allocFlags.compressionType = 1;
    }
    Block block = map(4, kind);
    CUmemAllocationProp found{};
    const auto ask = other<CUresult(CUmemAllocationProp*, CUmemGenericAllocationHandle)>(
        "cuMemGetAllocationPropertiesFromHandle");
    check(ask(&found, block.handles[0]), "properties");
    printf("%d %d\n", int(found.requestedHandleTypes), found.allocFlags.gpuDirectRDMACapable);
    launch(fill, nullptr, block.address, block.bytes / 4, 1);
    for (int step = 0; step < steps; ++step) {
        launch(add, nullptr, block.address, block.address, block.address, block.bytes / 4);
        printf("%llx\n", sum(block, nullptr));
    }
    give_back(block);
}

// Misuse, and what cannot be had of memory that moves. Natively some of it can.
void misuse() {
    Block mapped = map(1);
    printf("%d\n", call.cuMemAddressFree(mapped.address, mapped.bytes));
    const CUmemAllocationProp kind = plain_kind();
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

}  // namespace
