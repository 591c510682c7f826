// Contexts, their streams and events: made, entered, left and ended.
#pragma once

#include "graphs.h"
#include "state.h"

namespace fuzz {

inline const char* kernels_text() {
    static const std::string text = [] {
        std::string read;
        FILE* file = fopen(getenv("KERNELS"), "r");
        char part[4096];
        for (size_t bytes; (bytes = fread(part, 1, sizeof part, file)) > 0;) {
            read.append(part, bytes);
        }
        fclose(file);
        return read;
    }();
    return text.c_str();
}

inline void make_stream(State& state, int context) {
    make_current(state, context);
    Stream stream{nullptr, context, static_cast<int>(state.streams.size()), true, true};
    const unsigned flags = state.pick(2) == 0 ? CU_STREAM_NON_BLOCKING : 0;
    const CUresult result = state.one_in(2)
                                ? CALL(cuStreamCreateWithPriority, &stream.handle, flags, -1)
                                : CALL(cuStreamCreate, &stream.handle, flags);
    if (result == CUDA_SUCCESS) state.streams.push_back(stream);
}

// The context is current. Its default streams, kernels and some events.
inline void furnish(State& state, int index) {
    Context& context = state.contexts[index];
    CALL(cuModuleLoadData, &context.module, kernels_text());
    CALL(cuModuleGetFunction, &context.fill, context.module, "vk_fill");
    CALL(cuModuleGetFunction, &context.add, context.module, "vk_add");
    CALL(cuModuleGetFunction, &context.sweep, context.module, "vk_sweep");
    CALL(cuModuleGetFunction, &context.checksum, context.module, "vk_checksum");
    const int first = static_cast<int>(state.streams.size());
    const int legacy = first + (state.per_thread ? 1 : 0), per_thread = first + 2;
    state.streams.push_back({nullptr, index, state.per_thread ? per_thread : legacy, false, true});
    state.streams.push_back({VRAMKIT_STREAM_LEGACY, index, legacy, false, true});
    state.streams.push_back({VRAMKIT_STREAM_PER_THREAD, index, per_thread, false, true});
    for (unsigned count = state.pick(2) + 1; count > 0; --count) make_stream(state, index);
    for (int count = 0; count < 2; ++count) {
        Event event{nullptr, index, true, false};
        CALL(cuEventCreate, &event.handle, state.pick(2));
        state.events.push_back(event);
    }
}

inline void retain_primary(State& state, int device) {
    Context context{};
    context.device = device, context.primary = context.alive = true;
    CALL(cuDevicePrimaryCtxRetain, &context.handle, device);
    state.contexts.push_back(context);
    const int index = static_cast<int>(state.contexts.size()) - 1;
    make_current(state, index);
    furnish(state, index);
}

inline void create_context(State& state) {
    const auto made = std::count_if(state.contexts.begin(), state.contexts.end(),
                                    [](const Context& each) { return each.alive; });
    if (made >= state.devices + 2 || state.stack.size() > 6) return;
    Context context{};
    context.device = static_cast<int>(state.pick(state.devices)), context.alive = true;
    const CUresult result = state.one_in(2)
                                ? CALL(cuCtxCreate_v2, &context.handle, 0, context.device)
                                : CALL(cuCtxCreate_v4, &context.handle, nullptr, 0, context.device);
    if (result != CUDA_SUCCESS) return;
    state.contexts.push_back(context);
    state.stack.push_back(static_cast<int>(state.contexts.size()) - 1);
    furnish(state, state.current());
}

// All that belongs to a context is gone with it.
inline void forget_context(State& state, int index) {
    state.contexts[index].alive = false;
    for (Stream& each : state.streams) each.alive = each.alive && each.context != index;
    for (Event& each : state.events) each.alive = each.alive && each.context != index;
    for (Block& each : state.blocks) each.alive = each.alive && each.context != index;
}

// Before a context ends: nothing uses it any more, and what is left of it is in no graph.
inline void quiet_context(State& state, int index) {
    for (size_t graph = state.graphs.size(); graph-- > 0;) {
        const Graph& each = state.graphs[graph];
        const bool uses = std::any_of(each.blocks.begin(), each.blocks.end(), [&](int block) {
            return state.blocks[block].context == index;
        });
        if (each.context == index || uses) drop_graph(state, graph);
    }
    wait_for_all(state);
    for (size_t block = 0; block < state.blocks.size(); ++block) {
        Block& each = state.blocks[block];
        if (each.alive && each.kind == Kind::registered && each.context == index) {
            make_current(state, index);
            CALL(cuMemHostUnregister, reinterpret_cast<void*>(each.address));
            free(reinterpret_cast<void*>(each.address));
            each.alive = false;
        }
    }
}

// One that only the top of the stack names may end.
inline void destroy_context(State& state) {
    const int index = any(state, state.contexts, [](const Context& each) { return !each.primary; });
    if (index < 0) return;
    quiet_context(state, index);
    while (std::count(state.stack.begin(), state.stack.end(), index) > 0) {
        if (state.current() == index &&
            std::count(state.stack.begin(), state.stack.end(), index) == 1) {
            break;
        }
        CALL(cuCtxPopCurrent_v2, nullptr);
        state.stack.pop_back();
    }
    if (state.current() == index) state.stack.pop_back();
    CALL(cuCtxDestroy_v2, state.contexts[index].handle);
    forget_context(state, index);
    if (state.stack.empty()) make_current(state, 0);
}

inline void leave_all_contexts(State& state) {
    while (!state.stack.empty()) {
        if (state.stack.size() == 1 && state.one_in(2)) {
            CALL(cuCtxSetCurrent, nullptr);
        } else {
            CALL(cuCtxPopCurrent_v2, nullptr);
        }
        state.stack.pop_back();
    }
}

inline void pop_context(State& state) {
    CUcontext popped = nullptr;
    if (state.stack.size() < 2) return;
    CALL(cuCtxPopCurrent_v2, &popped);
    state.say("%s", state.name_of(popped).c_str());
    state.stack.pop_back();
}

// The primary context of a device ends, by a reset or with its last reference, and comes again.
inline void end_primary(State& state) {
    if (!state.alone) return;
    const int index = any(state, state.contexts, [](const Context& each) { return each.primary; });
    if (index < 0) return;
    const int device = state.contexts[index].device;
    quiet_context(state, index);
    // A shared card forgets with a reset what belongs to other contexts, and to none.
    const bool others = std::any_of(state.contexts.begin(), state.contexts.end(), [&](auto& each) {
        return each.alive && !each.primary && each.device == device;
    });
    const bool reset = !others && state.one_in(2);
    for (size_t block = 0; reset && block < state.blocks.size(); ++block) {
        const Block& each = state.blocks[block];
        if (each.alive && each.kind == Kind::mapped && each.device == device) {
            give_back(state, static_cast<int>(block));
        }
    }
    leave_all_contexts(state);
    if (reset) {
        CALL(cuDevicePrimaryCtxReset_v2, device);
    } else {
        CALL(cuDevicePrimaryCtxRelease_v2, device);
        if (state.one_in(2)) CALL(cuDevicePrimaryCtxRelease_v2, device);
    }
    forget_context(state, index);
    retain_primary(state, device);
}

inline void streams(State& state) {
    const int context = any(state, state.contexts, [](const Context&) { return true; });
    const int stream = any(state, state.streams, [](const Stream& each) { return each.own; });
    const auto count = std::count_if(state.streams.begin(), state.streams.end(),
                                     [](const Stream& each) { return each.alive && each.own; });
    if (context >= 0 && count < 8 && state.one_in(2)) {
        make_stream(state, context);
        return;
    }
    if (stream < 0 || count < 3) return;
    // Its work goes on.
    for (LastUse& each : state.uses) {
        if (each.stream == stream) each = {-1, state.streams[stream].context};
    }
    CALL(cuStreamDestroy_v2, state.streams[stream].handle);
    state.streams[stream].alive = false;
}

// With no context current, and with contexts that cannot be meant.
inline void misuse_contexts(State& state) {
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
    switch (state.pick(4)) {
        case 0: {
            const int before = state.current();
            leave_all_contexts(state);
            CALL(cuMemAlloc_v2, &address, 64);
            CALL(cuMemAllocAsync, &address, 64, nullptr);
            CALL(cuMemcpyDtoD_v2, 0x1000, 0x2000, 4);
            CALL(cuMemFree_v2, 0x1000);
            const int block = any(state, state.blocks,
                                  [](const Block& each) { return each.kind == Kind::plain; });
            if (block >= 0) CALL(cuMemFree_v2, state.blocks[block].address);
            make_current(state, before);
            break;
        }
        case 1:
            if (state.alone) CALL(cuCtxDestroy_v2, nullptr);
            break;
        case 2: {
            const int primary =
                any(state, state.contexts, [](const Context& each) { return each.primary; });
            if (primary >= 0) CALL(cuCtxDestroy_v2, state.contexts[primary].handle);
            break;
        }
        default:
            CALL(cuCtxCreate_v2, &context, 0, 99);
            CALL(cuDevicePrimaryCtxRetain, &context, 99);
            CALL(cuDevicePrimaryCtxRelease_v2, 99);
            CALL(cuCtxPushCurrent_v2, nullptr);
    }
}

}  // namespace fuzz
