// What a program asks about addresses, memory and contexts.
#pragma once

#include "memory.h"
#include "state.h"

namespace fuzz {

inline std::string answer_text(State& state, CUpointer_attribute attribute,
                               unsigned long long answer) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return state.name_of(reinterpret_cast<CUcontext>(answer));
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            return state.name_of(answer);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            for (size_t index = 0; index < state.pools.size(); ++index) {
                if (reinterpret_cast<CUdeviceptr>(state.pools[index].handle) == answer) {
                    return "p" + std::to_string(index);
                }
            }
            return answer == 0 ? "none" : "another";
        default:
            return std::to_string(answer);
    }
}

// Ids are the driver's own, and differ.
inline CUpointer_attribute any_attribute(State& state) {
    static const CUpointer_attribute all[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,   CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPED,           CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,     CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE,     CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,      static_cast<CUpointer_attribute>(99),
    };
    return all[state.pick(static_cast<unsigned>(std::size(all)))];
}

inline void ask_about_address(State& state) {
    const int index = any_block(state, static_cast<int>(state.pick(state.devices)));
    CUdeviceptr address = 0x1000;
    if (index >= 0 && !state.one_in(8)) {
        const Block& block = state.blocks[index];
        address = block.address + state.random() % block.bytes;
    }
    const CUpointer_attribute attribute = any_attribute(state);
    unsigned long long answers[3] = {};
    switch (state.pick(5)) {
        case 0: {
            CUdeviceptr base = 0;
            size_t bytes = 0;
            CALL(cuMemGetAddressRange_v2, state.one_in(4) ? nullptr : &base,
                 state.one_in(4) ? nullptr : &bytes, address);
            state.say("%s %zu", state.name_of(base).c_str(), bytes);
            break;
        }
        case 1: {
            CUpointer_attribute wanted[] = {attribute, any_attribute(state), any_attribute(state)};
            void* places[] = {&answers[0], &answers[1], &answers[2]};
            CALL(cuPointerGetAttributes, 3, wanted, places, address);
            for (int which = 0; which < 3; ++which) {
                state.say("%d: %s", wanted[which],
                          answer_text(state, wanted[which], answers[which]).c_str());
            }
            break;
        }
        default:
            CALL(cuPointerGetAttribute, &answers[0], attribute, address);
            state.say("%s, %d: %s", state.name_of(address).c_str(), attribute,
                      answer_text(state, attribute, answers[0]).c_str());
    }
}

inline void ask(State& state) {
    const int stream = any(state, state.streams, [](const Stream&) { return true; });
    CUcontext context = nullptr;
    CUdevice device = -1;
    size_t free = 0, total = 0, bytes = 0;
    switch (state.pick(6)) {
        case 0:
            CALL(cuCtxGetCurrent, &context);
            state.say("%s", state.name_of(context).c_str());
            break;
        case 1:
            CALL(cuCtxGetDevice, &device);
            state.say("%d", device);
            break;
        case 2:
            CALL(cuMemGetInfo_v2, &free, &total);
            state.say("%zu %d", total, free <= total);
            break;
        case 3:
            CALL(cuDeviceTotalMem_v2, &bytes, static_cast<int>(state.pick(state.devices + 1)));
            state.say("%zu", bytes);
            break;
        case 4:
            if (stream < 0 || !state.streams[stream].own) return;
            CALL(cuStreamGetCtx, state.streams[stream].handle, &context);
            state.say("%s", state.name_of(context).c_str());
            break;
        default: {
            unsigned flags = 77;
            int active = 77;
            CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active);
            state.say("%u %d", flags, active);
        }
    }
}

inline void ask_events(State& state) {
    const auto recorded = [](const Event& each) { return each.recorded; };
    const int one = any(state, state.events, recorded), two = any(state, state.events, recorded);
    if (one < 0) return;
    CALL(cuEventSynchronize, state.events[one].handle);
    CALL(cuEventQuery, state.events[one].handle);
    float time = 0;
    if (state.one_in(3)) {
        CALL(cuEventSynchronize, state.events[two].handle);
        CALL(cuEventElapsedTime, &time, state.events[one].handle, state.events[two].handle);
    }
}

inline void wait(State& state) {
    const int stream = any_stream(state, static_cast<int>(state.pick(state.devices)));
    if (stream < 0) return;
    switch (state.pick(3)) {
        case 0:
            wait_for_stream(state, stream);
            if (state.alone) CALL(cuStreamQuery, state.streams[stream].handle);
            break;
        case 1:
            wait_for_context(state, state.streams[stream].context);
            break;
        default: {
            // A function of the host, behind the stream's work.
            static const CUhostFn count = [](void* data) { ++*static_cast<int*>(data); };
            int called = 0;
            CALL(cuLaunchHostFunc, state.streams[stream].handle, count, &called);
            wait_for_stream(state, stream);
            state.say("called %d", called);
        }
    }
}

}  // namespace fuzz
