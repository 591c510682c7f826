// Copies in all their forms, and what the program reads of its memory.
#pragma once

#include "state.h"

namespace fuzz {

// Between two ranges that do not overlap.
struct Copy {
    CUdeviceptr to, from;
    size_t bytes;
    int to_device, from_device, stream;
    Block* to_block;
    Block* from_block;
};

inline bool choose_copy(State& state, Copy& copy, bool own_only = false) {
    const int device = static_cast<int>(state.pick(state.devices));
    const int to = any_block(state, device);
    const int from = any_block(state, static_cast<int>(state.pick(state.devices)));
    if (to < 0 || from < 0 || state.blocks[to].use == state.blocks[from].use) return false;
    copy.stream = any_stream(state, device, own_only);
    if (copy.stream < 0) return false;
    copy.to_block = &state.blocks[to], copy.from_block = &state.blocks[from];
    const Range one = any_range(state, *copy.to_block), two = any_range(state, *copy.from_block);
    copy.to = one.address, copy.from = two.address;
    copy.bytes = std::min(one.bytes, two.bytes);
    copy.to_device = copy.to_block->device, copy.from_device = copy.from_block->device;
    return copy.bytes > 0;
}

inline void order_copy(State& state, const Copy& copy, int stream) {
    order(state, *copy.to_block, stream);
    order(state, *copy.from_block, stream);
}

// In one dimension.
inline void copy_flat(State& state) {
    Copy copy;
    if (!choose_copy(state, copy)) return;
    const bool on_card = copy.to_block->kind != Kind::host && copy.from_block->kind != Kind::host &&
                         copy.to_block->kind != Kind::registered &&
                         copy.from_block->kind != Kind::registered;
    const unsigned how = state.pick(6);
    const bool now = how < 3;
    const int stream = now && !state.stack.empty() ? default_stream(state) : copy.stream;
    order_copy(state, copy, stream);
    const CUstream handle = state.streams[stream].handle;
    const CUcontext context = state.contexts[state.streams[stream].context].handle;
    switch (how) {
        case 0:
            CALL(cuMemcpy, copy.to, copy.from, copy.bytes);
            break;
        case 1:
            if (on_card) CALL(cuMemcpyDtoD_v2, copy.to, copy.from, copy.bytes);
            break;
        case 2:
            if (on_card) CALL(cuMemcpyPeer, copy.to, context, copy.from, context, copy.bytes);
            break;
        case 3:
            CALL(cuMemcpyAsync, copy.to, copy.from, copy.bytes, handle);
            break;
        case 4:
            if (on_card) CALL(cuMemcpyDtoDAsync_v2, copy.to, copy.from, copy.bytes, handle);
            break;
        default:
            if (on_card) {
                CALL(cuMemcpyPeerAsync, copy.to, context, copy.from, context, copy.bytes, handle);
            }
    }
}

// Boxes of rows, in two or three dimensions.
inline void copy_box(State& state) {
    Copy copy;
    if (!choose_copy(state, copy)) return;
    const size_t width = state.pick(252) + 4, height = state.pick(8) + 1, depth = state.pick(3) + 1;
    const size_t pitch = 256, rows = 8;
    if (std::min(copy.to_block->bytes, copy.from_block->bytes) < pitch * rows * 4) return;
    const bool now = state.one_in(2);
    const int stream = now && !state.stack.empty() ? default_stream(state) : copy.stream;
    order_copy(state, copy, stream);
    const CUstream handle = state.streams[stream].handle;
    const CUcontext context = state.contexts[state.streams[stream].context].handle;
    CUDA_MEMCPY2D flat{};
    flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    flat.srcDevice = copy.from_block->address, flat.dstDevice = copy.to_block->address;
    flat.srcPitch = flat.dstPitch = pitch;
    flat.srcXInBytes = state.pick(4), flat.dstY = state.pick(4);
    flat.WidthInBytes = std::min(width, pitch - flat.srcXInBytes), flat.Height = height;
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    box.srcDevice = flat.srcDevice, box.dstDevice = flat.dstDevice;
    box.srcPitch = box.dstPitch = pitch, box.srcHeight = box.dstHeight = rows;
    box.WidthInBytes = width, box.Height = height, box.Depth = depth;
    box.srcZ = state.pick(2);
    CUDA_MEMCPY3D_PEER peer{};
    peer.srcMemoryType = peer.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    peer.srcDevice = box.srcDevice, peer.dstDevice = box.dstDevice;
    peer.srcPitch = peer.dstPitch = pitch, peer.srcHeight = peer.dstHeight = rows;
    peer.WidthInBytes = width, peer.Height = height, peer.Depth = depth;
    peer.srcContext = peer.dstContext = context;
    switch (state.pick(4) + (now ? 4 : 0)) {
        case 0:
        case 1:
            CALL(cuMemcpy2DAsync_v2, &flat, handle);
            break;
        case 2:
            CALL(cuMemcpy3DAsync_v2, &box, handle);
            break;
        case 3:
            CALL(cuMemcpy3DPeerAsync, &peer, handle);
            break;
        case 4:
            CALL(cuMemcpy2D_v2, &flat);
            break;
        case 5:
            CALL(cuMemcpy2DUnaligned_v2, &flat);
            break;
        case 6:
            CALL(cuMemcpy3D_v2, &box);
            break;
        default:
            CALL(cuMemcpy3DPeer, &peer);
    }
}

// Several copies by one call, in no order among themselves.
inline void copy_batch(State& state) {
    Copy copy;
    if (!choose_copy(state, copy, true)) return;
    order_copy(state, copy, copy.stream);
    const CUstream handle = state.streams[copy.stream].handle;
    const size_t half = copy.bytes / 8 * 4;
    CUdeviceptr to[] = {copy.to, copy.to + half}, from[] = {copy.from, copy.from + half};
    size_t sizes[] = {half, copy.bytes - half}, first = 0, failed = 77;
    CUmemcpyAttributes kind{};
    kind.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CUDA_MEMCPY3D_BATCH_OP operation{};
    operation.src.type = operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    operation.src.op.ptr = {copy.from, 0, 0, {CU_MEM_LOCATION_TYPE_DEVICE, copy.from_device}};
    operation.dst.op.ptr = {copy.to, 0, 0, {CU_MEM_LOCATION_TYPE_DEVICE, copy.to_device}};
    operation.extent = {copy.bytes, 1, 1};
    operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    switch (state.pick(5)) {
        case 0:
            CALL(cuMemcpyBatchAsync_v2, to, from, sizes, 2, &kind, &first, 1, handle);
            break;
        case 1:
            CALL(cuMemcpyBatchAsync, to, from, sizes, 2, &kind, &first, 1, &failed, handle);
            break;
        case 2:
            CALL(cuMemcpy3DBatchAsync_v2, 1, &operation, 0, handle);
            break;
        case 3:
            CALL(cuMemcpy3DBatchAsync, 1, &operation, &failed, 0, handle);
            break;
        default:
            kind.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
            CALL(cuMemcpyBatchAsync, to, from, sizes, 2, &kind, &first, 1, &failed, handle);
    }
    state.say("failed %zu", failed);
}

// What the program sees of its memory.
inline void read_block(State& state, int index) {
    Block& block = state.blocks[index];
    const Range range =
        block.bytes % 4 != 0 ? Range{block.address, block.bytes} : any_range(state, block);
    std::vector<char> bytes(range.bytes);
    const int stream = any_stream(state, block.device);
    if (stream < 0 || state.stack.empty() || range.bytes == 0) return;
    const bool on_card = block.kind != Kind::host && block.kind != Kind::registered;
    switch (state.pick(on_card ? 3 : 1)) {
        case 0:
            order(state, block, stream);
            CALL(cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(bytes.data()), range.address,
                 range.bytes, state.streams[stream].handle);
            wait_for_stream(state, stream);
            break;
        case 1:
            order(state, block, default_stream(state));
            CALL(cuMemcpyDtoH_v2, bytes.data(), range.address, range.bytes);
            break;
        default:
            order(state, block, stream);
            CALL(cuMemcpyDtoHAsync_v2, bytes.data(), range.address, range.bytes,
                 state.streams[stream].handle);
            wait_for_stream(state, stream);
    }
    state.say("%s of %zu: %llx", state.name_of(range.address).c_str(), range.bytes,
              hash(bytes.data(), bytes.size()));
}

inline void read_any(State& state) {
    const int index = any_block(state, static_cast<int>(state.pick(state.devices)));
    if (index >= 0) read_block(state, index);
}

inline void write_any(State& state) {
    const int index = any_block(state, static_cast<int>(state.pick(state.devices)));
    if (index < 0) return;
    Block& block = state.blocks[index];
    if (block.kind == Kind::host || block.kind == Kind::registered) return;
    const int stream = any_stream(state, block.device);
    if (stream < 0 || state.stack.empty()) return;
    const Range range = any_range(state, block);
    std::vector<unsigned> words(range.bytes / 4, static_cast<unsigned>(state.random()));
    if (state.one_in(2)) {
        order(state, block, default_stream(state));
        CALL(cuMemcpyHtoD_v2, range.address, words.data(), range.bytes);
    } else {
        order(state, block, stream);
        CALL(cuMemcpyHtoDAsync_v2, range.address, words.data(), range.bytes,
             state.streams[stream].handle);
    }
}

}  // namespace fuzz
