// Captured work, replayed.
#pragma once

#include "memory.h"
#include "state.h"
#include "work.h"

namespace fuzz {

inline void drop_graph(State& state, size_t index) {
    Graph& graph = state.graphs[index];
    for (const int block : graph.blocks) --state.blocks[block].graphs;
    CALL(cuGraphExecDestroy, graph.executable);
    CALL(cuGraphDestroy, graph.graph);
    state.graphs.erase(state.graphs.begin() + index);
}

inline void drop_graphs_of(State& state, int block) {
    for (size_t index = state.graphs.size(); index-- > 0;) {
        const std::vector<int>& blocks = state.graphs[index].blocks;
        if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) {
            drop_graph(state, index);
        }
    }
}

inline void node(State& state, int stream, const std::vector<int>& blocks) {
    const CUstream handle = state.streams[stream].handle;
    const Block& to = state.blocks[blocks.front()];
    const Block& from = state.blocks[blocks.back()];
    const size_t bytes = std::min(to.bytes, from.bytes) & ~size_t{3};
    switch (state.pick(5)) {
        case 0:
            CALL(cuMemsetD32Async, to.address, state.random(), to.bytes / 4, handle);
            break;
        case 1:
            if (to.use == from.use) return;
            CALL(cuMemcpyDtoDAsync_v2, to.address, from.address, bytes, handle);
            break;
        default:
            run_kernel(state, stream, blocks);
    }
}

inline bool instantiate(State& state, CUgraphExec* executable, CUgraph graph) {
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
    switch (state.pick(3)) {
        case 0:
            return CALL(cuGraphInstantiateWithFlags, executable, graph, 0) == CUDA_SUCCESS;
        case 1:
            return CALL(cuGraphInstantiate_v2, executable, graph, nullptr, nullptr, 0) ==
                   CUDA_SUCCESS;
        default:
            return CALL(cuGraphInstantiateWithParams, executable, graph, &parameters) ==
                   CUDA_SUCCESS;
    }
}

inline bool can_be_captured(const Block& block) {
    return block.bytes >= 8 && block.kind != Kind::host && block.kind != Kind::registered;
}

// One or two streams; other calls go on meanwhile where the mode of the capture lets them.
inline void capture(State& state) {
    if (!state.alone || state.graphs.size() >= 4) return;
    const int device = static_cast<int>(state.pick(state.devices));
    std::vector<int> blocks;
    for (unsigned index = state.pick(2) + 2; index > 0; --index) {
        const int block = any(state, state.blocks, [&](const Block& each) {
            return each.device == device && can_be_captured(each);
        });
        if (block >= 0) blocks.push_back(block);
    }
    const int stream = any_stream(state, device, true);
    if (blocks.empty() || stream < 0) return;
    const int context = state.streams[stream].context;
    wait_for_all(state);
    make_current(state, context);
    const auto mode = static_cast<CUstreamCaptureMode>(state.pick(3));
    const CUstream handle = state.streams[stream].handle;
    CALL(cuStreamBeginCapture_v2, handle, mode);
    for (unsigned times = state.pick(4) + 1; times > 0; --times) node(state, stream, blocks);
    const int beside = any(state, state.streams, [&](const Stream& each) {
        return each.own && each.context == context && each.handle != handle;
    });
    const int event =
        any(state, state.events, [&](const Event& each) { return each.context == context; });
    if (beside >= 0 && event >= 0 && state.one_in(2)) {
        const CUevent fork = state.events[event].handle;
        CALL(cuEventRecord, fork, handle);
        CALL(cuStreamWaitEvent, state.streams[beside].handle, fork, 0);
        node(state, beside, blocks);
        CALL(cuEventRecord, fork, state.streams[beside].handle);
        CALL(cuStreamWaitEvent, handle, fork, 0);
        node(state, stream, blocks);
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CALL(cuStreamIsCapturing, handle, &status);
    state.say("status %d", status);
    const bool relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr extra = 0;
    if (relaxed && state.one_in(2)) {
        CALL(cuMemAlloc_v2, &extra, any_size(state));
        if (state.one_in(2)) {
            CALL(cuMemFree_v2, extra);
            extra = 0;
        }
    }
    if (state.one_in(8)) CALL(cuStreamSynchronize, handle);
    CUgraph graph = nullptr;
    const CUresult ended = CALL(cuStreamEndCapture, handle, &graph);
    if (event >= 0) CALL(cuEventRecord, state.events[event].handle, handle);
    if (extra != 0) CALL(cuMemFree_v2, extra);
    if (ended != CUDA_SUCCESS || graph == nullptr) return;
    size_t nodes = 0;
    CALL(cuGraphGetNodes, graph, nullptr, &nodes);
    state.say("nodes %zu", nodes);
    CUgraphExec executable = nullptr;
    if (!instantiate(state, &executable, graph)) return;
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    for (const int each : blocks) ++state.blocks[each].graphs;
    state.graphs.push_back({graph, executable, context, blocks});
}

inline void replay(State& state) {
    if (state.graphs.empty()) return;
    const size_t index = state.pick(static_cast<unsigned>(state.graphs.size()));
    const Graph graph = state.graphs[index];
    const int stream = any(state, state.streams,
                           [&](const Stream& each) { return each.context == graph.context; });
    if (stream < 0) return;
    make_current(state, graph.context);
    for (const int each : graph.blocks) order(state, state.blocks[each], stream);
    if (state.one_in(4)) {
        CALL(cuGraphUpload, graph.executable, state.streams[stream].handle);
    }
    for (unsigned times = state.pick(3) + 1; times > 0; --times) {
        CALL(cuGraphLaunch, graph.executable, state.streams[stream].handle);
    }
    if (state.one_in(6)) drop_graph(state, index);
}

}  // namespace fuzz
