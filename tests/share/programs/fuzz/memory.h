// Blocks of every kind: made, changed and given back.
#pragma once

#include "copies.h"
#include "state.h"
#include "work.h"

namespace fuzz {

constexpr size_t kMostBytes = size_t{160} << 20;  // of all blocks

inline size_t bytes_in_use(const State& state) {
    size_t bytes = 0;
    for (const Block& each : state.blocks) bytes += each.alive ? each.bytes : 0;
    return bytes;
}

inline size_t any_size(State& state) {
    switch (state.pick(6)) {
        case 0:
            return state.pick(64) + 1;
        case 1:
        case 2:
            return (state.pick(2048) + 1) * 4;
        case 3:
        case 4:
            return (state.pick(1 << 18) + 1) * 4;
        default:
            return (size_t{state.pick(12)} << 20) + (state.one_in(2) ? 0 : 4 * state.pick(5000)) +
                   (size_t{1} << 20);
    }
}

inline Block& add_block(State& state, Block block) {
    block.use = static_cast<int>(state.uses.size());
    state.uses.emplace_back();
    state.blocks.push_back(block);
    return state.blocks.back();
}

inline void check_answer(State& state, CUdeviceptr address) {
    state.say("aligned %d", address % 256 == 0);
}

inline CUmemAllocationProp memory_of(int device) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return kind;
}

inline CUresult give_access(State& state, CUdeviceptr address, size_t bytes, int device,
                            CUmemAccess_flags flags) {
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return CALL(cuMemSetAccess, address, bytes, &access, 1);
}

// A reservation, filled with one to three handles.
inline void map_block(State& state, int device) {
    Block block{Kind::mapped, 0, 0};
    block.device = device;
    const unsigned count = state.pick(3) + 1;
    for (unsigned index = 0; index < count; ++index) {
        const size_t bytes = (state.pick(2) + 1) * kPage;
        block.parts.push_back({0, block.bytes, bytes, false});
        block.bytes += bytes;
    }
    const size_t alignment = state.one_in(3) ? 4 * kPage : 0;
    if (CALL(cuMemAddressReserve, &block.address, block.bytes, alignment, 0, 0) != CUDA_SUCCESS) {
        return;
    }
    const CUmemAllocationProp kind = memory_of(device);
    for (Part& part : block.parts) {
        CALL(cuMemCreate, &part.handle, part.bytes, &kind, 0);
        CALL(cuMemMap, block.address + part.offset, part.bytes, 0, part.handle, 0);
        if (state.one_in(3)) {
            CALL(cuMemRelease, part.handle);
            part.released = true;
        }
    }
    give_access(state, block.address, block.bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    fill_block(state, add_block(state, block));
}

inline void allocate(State& state) {
    const size_t left = kMostBytes - std::min(kMostBytes, bytes_in_use(state));
    if (left < (size_t{16} << 20) || state.blocks.size() > 400) return;
    const size_t bytes = any_size(state);
    const int device = static_cast<int>(state.pick(state.devices));
    const int stream = any_stream(state, device);
    if (stream < 0 || state.stack.empty()) return;
    Block block{Kind::plain, 0, bytes};
    block.context = state.current();
    block.device = state.contexts[block.context].device;
    const CUstream handle = state.streams[stream].handle;
    CUresult result = CUDA_SUCCESS;
    switch (state.pick(12)) {
        case 0: {
            const size_t width = state.pick(3000) + 1, height = state.pick(300) + 1;
            const unsigned element = 4 << state.pick(3);
            result = CALL(cuMemAllocPitch_v2, &block.address, &block.pitch, width, height, element);
            block.kind = Kind::pitched;
            block.bytes = block.pitch * height;
            state.say("pitch %zu", block.pitch);
            break;
        }
        case 1:
            result = CALL(cuMemAllocManaged, &block.address, bytes, CU_MEM_ATTACH_GLOBAL);
            block.kind = Kind::managed;
            break;
        case 2: {
            void* pointer = nullptr;
            const unsigned flags = state.pick(4);
            result = state.one_in(2) ? CALL(cuMemHostAlloc, &pointer, bytes, flags)
                                     : CALL(cuMemAllocHost_v2, &pointer, bytes);
            block.kind = Kind::host;
            block.address = reinterpret_cast<CUdeviceptr>(pointer);
            break;
        }
        case 3: {
            const size_t whole = (bytes + 4095) / 4096 * 4096;
            void* pointer = aligned_alloc(4096, whole);
            memset(pointer, 0, whole);
            block.bytes = whole;
            result = CALL(cuMemHostRegister_v2, pointer, whole, 0);
            block.kind = Kind::registered;
            block.address = reinterpret_cast<CUdeviceptr>(pointer);
            break;
        }
        case 4:
        case 5:
        case 6: {
            const int of_stream = state.contexts[state.streams[stream].context].device;
            const int pool =
                any(state, state.pools, [&](const Pool& each) { return each.device == of_stream; });
            if (pool >= 0 && state.one_in(2)) {
                result = CALL(cuMemAllocFromPoolAsync, &block.address, bytes,
                              state.pools[pool].handle, handle);
            } else {
                result = CALL(cuMemAllocAsync, &block.address, bytes, handle);
            }
            block.kind = Kind::ordered;
            block.context = state.streams[stream].context;
            block.device = of_stream;
            break;
        }
        case 7:
        case 8:
            map_block(state, device);
            return;
        default:
            result = CALL(cuMemAlloc_v2, &block.address, bytes);
    }
    if (result != CUDA_SUCCESS) return;
    check_answer(state, block.address);
    Block& made = add_block(state, block);
    if (made.kind == Kind::ordered) state.uses[made.use] = {stream, -1};
    fill_block(state, made);
}

inline void unmap_block(State& state, Block& block) {
    if (state.one_in(2)) {
        CALL(cuMemUnmap, block.address, block.bytes);
    } else {
        for (const Part& part : block.parts) {
            CALL(cuMemUnmap, block.address + part.offset, part.bytes);
        }
    }
    for (const Part& part : block.parts) {
        if (!part.released) CALL(cuMemRelease, part.handle);
    }
    CALL(cuMemAddressFree, block.address, block.bytes);
}

inline void drop_graphs_of(State& state, int index);

inline void give_back(State& state, int index) {
    if (state.blocks[index].graphs > 0) drop_graphs_of(state, index);
    Block& block = state.blocks[index];
    const int stream = any_stream(state, block.device);
    if (stream < 0 || state.stack.empty()) return;
    const bool by_stream = block.kind == Kind::ordered
                               ? !state.one_in(4)
                               : block.kind == Kind::plain && state.one_in(4);
    if (by_stream) {
        order(state, block, stream);
        CALL(cuMemFreeAsync, block.address, state.streams[stream].handle);
        block.alive = false;
        return;
    }
    // That cuMemFree waits for work is not documented; programs rely on it all the same.
    const int last = state.uses[block.use].stream;
    const bool relying = block.kind == Kind::plain && last >= 0 && state.one_in(2) &&
                         state.streams[last].context == block.context;
    auto* rely = control<void(int)>("simRelyOnWaits");
    if (relying) {
        make_current(state, block.context);
        rely(1);
    } else {
        wait_for_block(state, block);
    }
    if (state.stack.empty()) return;
    block.alive = false;
    switch (block.kind) {
        case Kind::host:
            CALL(cuMemFreeHost, reinterpret_cast<void*>(block.address));
            break;
        case Kind::registered:
            CALL(cuMemHostUnregister, reinterpret_cast<void*>(block.address));
            free(reinterpret_cast<void*>(block.address));
            break;
        case Kind::mapped:
            unmap_block(state, block);
            break;
        default:
            CALL(cuMemFree_v2, block.address);
            if (state.alone && state.one_in(3)) CALL(cuMemFree_v2, block.address);
    }
    if (relying) rely(0);
}

inline void free_any(State& state) {
    const int index = any_block(state, static_cast<int>(state.pick(state.devices)));
    if (index >= 0) give_back(state, index);
}

// A part of a mapped block gets other memory; or the block a second address; or another access.
inline void change_mapping(State& state) {
    const int index = any(state, state.blocks, [](const Block& each) {
        return each.kind == Kind::mapped && each.graphs == 0;
    });
    if (index < 0) return;
    const CUmemAllocationProp kind = memory_of(state.blocks[index].device);
    wait_for_block(state, state.blocks[index]);
    Block& block = state.blocks[index];
    Part& part = block.parts[state.pick(static_cast<unsigned>(block.parts.size()))];
    const CUdeviceptr address = block.address + part.offset;
    const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, block.device};
    switch (state.pick(5)) {
        case 0: {
            CALL(cuMemUnmap, address, part.bytes);
            if (!part.released) CALL(cuMemRelease, part.handle);
            CALL(cuMemCreate, &part.handle, part.bytes, &kind, 0);
            CALL(cuMemMap, address, part.bytes, 0, part.handle, 0);
            part.released = false;
            give_access(state, address, part.bytes, block.device,
                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
            Block piece{Kind::mapped, address, part.bytes};
            piece.device = block.device, piece.use = block.use;
            fill_block(state, piece);
            break;
        }
        case 1: {
            // The same bytes at two addresses.
            if (bytes_in_use(state) + part.bytes > kMostBytes) return;
            Block second{Kind::mapped, 0, part.bytes};
            second.device = block.device, second.use = block.use;
            CUmemGenericAllocationHandle handle = 0;
            CALL(cuMemRetainAllocationHandle, &handle, reinterpret_cast<void*>(address + 100));
            state.say("same %d", part.released || handle == part.handle);
            CALL(cuMemAddressReserve, &second.address, second.bytes, 0, 0, 0);
            CALL(cuMemMap, second.address, second.bytes, 0, handle, 0);
            give_access(state, second.address, second.bytes, second.device,
                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
            second.parts.push_back({handle, 0, second.bytes, false});
            state.blocks.push_back(second);
            break;
        }
        case 2: {
            unsigned word = 7;
            unsigned long long flags = 77;
            const auto access = static_cast<CUmemAccess_flags>(
                state.one_in(2) ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE);
            give_access(state, address, part.bytes, block.device, access);
            CALL(cuMemGetAccess, &flags, &here, address + 9);
            state.say("access %llu", flags);
            make_current(state, any(state, state.contexts, [](const Context&) { return true; }));
            CALL(cuMemcpyHtoD_v2, address, &word, 4);
            CALL(cuMemcpyDtoH_v2, &word, address, 4);
            CALL(cuMemsetD32_v2, address, 1, 1);
            give_access(state, address, part.bytes, block.device,
                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
            CALL(cuMemGetAccess, &flags, &here, address + 9);
            state.say("access %llu", flags);
            break;
        }
        case 3: {
            CUmemGenericAllocationHandle handle = 0;
            CUmemAllocationProp found{};
            CALL(cuMemRetainAllocationHandle, &handle, reinterpret_cast<void*>(address));
            CALL(cuMemGetAllocationPropertiesFromHandle, &found, handle);
            state.say("type %d device %d", found.type, found.location.id);
            CALL(cuMemRelease, handle);
            break;
        }
        default: {
            // What the driver refuses.
            CUmemGenericAllocationHandle spare = 0;
            CALL(cuMemAddressFree, block.address, block.bytes);
            CALL(cuMemUnmap, address, kPage / 2);
            CALL(cuMemCreate, &spare, kPage, &kind, 0);
            CALL(cuMemMap, address, kPage, 0, spare, 0);
            CALL(cuMemMap, address, kPage, kPage, spare, 0);
            CALL(cuMemMap, 0x1000000, kPage, 0, spare, 0);
            CALL(cuMemMap, address + 512, kPage, 0, spare, 0);
            CALL(cuMemRelease, spare);
            if (state.alone) CALL(cuMemRelease, spare);
            CALL(cuMemCreate, &spare, kPage + 1, &kind, 0);
            CALL(cuMemCreate, &spare, 0, &kind, 0);
            CALL(cuMemCreate, &spare, size_t{1} << 40, &kind, 0);
            CUmemAllocationProp wrong = memory_of(state.devices + 3);
            CALL(cuMemCreate, &spare, kPage, &wrong, 0);
        }
    }
}

inline void managed(State& state) {
    const int index =
        any(state, state.blocks, [](const Block& each) { return each.kind == Kind::managed; });
    if (index < 0) return;
    Block& block = state.blocks[index];
    const int stream = any_stream(state, block.device);
    if (stream < 0) return;
    order(state, block, stream);
    const CUstream handle = state.streams[stream].handle;
    const CUmemLocation place{
        state.one_in(2) ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, 0};
    switch (state.pick(4)) {
        case 0:
            CALL(cuMemPrefetchAsync, block.address, block.bytes,
                 state.one_in(2) ? VRAMKIT_DEVICE_CPU : 0, handle);
            break;
        case 1:
            CALL(cuMemPrefetchAsync_v2, block.address, block.bytes, place, 0, handle);
            break;
        case 2:
            CALL(cuMemAdvise_v2, block.address, block.bytes,
                 static_cast<CUmem_advise>(state.pick(4) + 1), place);
            break;
        default: {
            int value = 77;
            CALL(cuMemRangeGetAttribute, &value, sizeof value,
                 static_cast<CUmem_range_attribute>(state.pick(2) + 1), block.address, block.bytes);
            state.say("value %d", value);
        }
    }
}

inline void pools(State& state) {
    const int device = static_cast<int>(state.pick(state.devices));
    const int index =
        any(state, state.pools, [&](const Pool& each) { return each.device == device; });
    CUmemoryPool usual = nullptr, current = nullptr;
    CALL(cuDeviceGetDefaultMemPool, &usual, device);
    const CUmemoryPool pool = index < 0 || state.one_in(3) ? usual : state.pools[index].handle;
    cuuint64_t value = 0;
    switch (state.pick(8)) {
        case 0: {
            if (state.pools.size() > 6) return;
            CUmemPoolProps properties{};
            properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
            properties.maxSize = state.one_in(4) ? size_t{1} << 30 : 0;
            CUmemoryPool made = nullptr;
            if (CALL(cuMemPoolCreate, &made, &properties) == CUDA_SUCCESS) {
                state.pools.push_back({made, device, true});
            }
            break;
        }
        case 1:
            if (index < 0 || !state.one_in(2)) return;
            CALL(cuMemPoolDestroy, state.pools[index].handle);
            state.pools[index].alive = false;
            break;
        case 2:
            if (state.alone) CALL(cuDeviceSetMemPool, device, pool);
            break;
        case 3:
            CALL(cuMemPoolTrimTo, pool, state.one_in(2) ? 0 : kPage);
            break;
        case 4:
            value = state.one_in(2) ? ~cuuint64_t{0} : kPage;
            CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
            break;
        case 5:
            if (!state.alone) return;
            CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
            state.say("used %llu", static_cast<unsigned long long>(value));
            break;
        case 6:
            CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
            if (state.alone) state.say("kept %llu", static_cast<unsigned long long>(value));
            value = 1;
            CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value);
            CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
            break;
        default:
            CALL(cuDeviceGetMemPool, &current, device);
            if (state.alone) state.say("usual %d", current == usual);
    }
}

inline void misuse_memory(State& state) {
    CUdeviceptr address = 0x77;
    size_t pitch = 77;
    const int index = any_block(state, 0);
    if (state.stack.empty()) return;
    switch (state.pick(9)) {
        case 0:
            CALL(cuMemAlloc_v2, &address, 0);
            CALL(cuMemAlloc_v2, nullptr, 64);
            break;
        case 1:
            CALL(cuMemAlloc_v2, &address, size_t{1} << 40);
            CALL(cuMemAlloc_v2, &address, ~size_t{0});
            break;
        case 2:
            CALL(cuMemAllocPitch_v2, &address, &pitch, 0, 3, 4);
            CALL(cuMemAllocPitch_v2, &address, &pitch, 3, 3, 5);
            CALL(cuMemAllocPitch_v2, &address, &pitch, 512, ~size_t{0} / 512, 4);
            break;
        case 3:
            CALL(cuMemFree_v2, 0);
            CALL(cuMemFree_v2, 0x1000);
            break;
        case 4:
            if (index < 0 || state.blocks[index].bytes < 8) return;
            CALL(cuMemFree_v2, state.blocks[index].address + 4);
            CALL(cuMemFreeAsync, state.blocks[index].address + 4, nullptr);
            break;
        case 5:
            CALL(cuMemFreeAsync, 0x1000, nullptr);
            CALL(cuMemFreeAsync, 0, nullptr);
            break;
        case 6:
            CALL(cuMemAllocAsync, &address, 0, nullptr);
            CALL(cuMemAllocAsync, nullptr, 64, nullptr);
            CALL(cuMemAllocAsync, &address, size_t{1} << 40, nullptr);
            break;
        case 7:
            CALL(cuMemAllocManaged, &address, 64, 9);
            CALL(cuMemAllocManaged, &address, 0, CU_MEM_ATTACH_GLOBAL);
            CALL(cuMemFreeHost, &address);
            CALL(cuMemHostUnregister, &address);
            break;
        default:
            CALL(cuMemAddressReserve, &address, 77, 0, 0, 0);
            CALL(cuMemAddressFree, 0x1000000, kPage);
            CALL(cuMemUnmap, 0x1000000, kPage);
            CALL(cuMemRelease, 0x1234);
    }
}

}  // namespace fuzz
