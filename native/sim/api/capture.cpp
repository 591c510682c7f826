// Exported calls: stream capture, and graphs made by it.
#include "sim/api/call.h"
#include "sim/time/background.h"

using namespace vramkit::sim;

namespace {

// The two flags that change nothing here: no node allocates, and a replay has its stream's
// priority.
constexpr unsigned long long kHarmlessFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
constexpr unsigned long long kLastFlags = 15;

CUstreamCaptureStatus status_of(const Stream& stream) {
    if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// The graph is named as the end of its capture will name it. Of an invalidated capture only that is
// told: documented are answers about an active one.
CUresult ask(Call& call, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id = nullptr,
             CUgraph* graph = nullptr, const CUgraphNode** nodes = nullptr,
             const CUgraphEdgeData** edges = nullptr, size_t* count = nullptr) {
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream, Purpose::ask);
    if (found != CUDA_SUCCESS) return found;
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Context& context = *stream->context;
    if (stream == context.legacy && call.machine().captures.blocks_legacy(context)) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *status = status_of(*stream);
    if (nodes != nullptr) *nodes = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = 0;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    Graph& captured = *stream->capture->graph;
    if (id != nullptr) *id = stream->capture->id;
    if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(&captured);
    stream->dependencies.clear();
    for (const NodeIndex tip : stream->tips) {
        stream->dependencies.push_back(reinterpret_cast<CUgraphNode>(&captured.nodes[tip]));
    }
    stream->edges.assign(stream->tips.size(), CUgraphEdgeData{});
    if (nodes != nullptr) *nodes = stream->dependencies.data();
    if (edges != nullptr) *edges = stream->edges.data();
    if (count != nullptr) *count = stream->dependencies.size();
    return CUDA_SUCCESS;
}

CUresult instantiate(Call& call, CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
    const auto found = call.machine().captures.find(graph);
    // Uploading needs a stream, which only the parameters of cuGraphInstantiateWithParams name.
    if (executable == nullptr || found == nullptr || flags > kLastFlags ||
        (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & ~kHarmlessFlags) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    *executable = call.machine().captures.instantiate(found);
    return CUDA_SUCCESS;
}

// Issues the nodes in the order of their capture. For the checker, each is an access made here and
// now: from outside, a graph can only be ordered as a whole.
CUresult launch(Call& call, CUgraphExec handle, CUstream stream_handle) {
    Machine& machine = call.machine();
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(stream_handle, stream);
    if (found != CUDA_SUCCESS) return found;
    const auto executable = machine.captures.find(handle);
    if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;  // a graph inside a graph
    const std::shared_ptr<const Graph> graph = executable->graph;
    for (const GraphNode& node : graph->nodes) {
        Operation* operation = call.repeat(node.operation, stream);
        if (executable->last != nullptr && executable->last->pending != nullptr) {
            Core::depend(operation, executable->last->pending);
        }
        executable->last = operation->milestone = std::make_shared<Milestone>(operation);
        operation->keeps = executable;
        machine.order_for_checker(*stream);
        if (machine.settings.checker) Checker::order_after(stream->actor, executable->clock);
        for (const CapturedTouch& touch : node.touches) {
            if (machine.uses_released(*graph, touch, *stream, call.site())) continue;
            machine.judge(*stream, touch, call.site());
        }
        executable->clock = stream->actor.clock;
        const CUresult result = call.enqueue(operation);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

}  // namespace

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    return run(CallId::cuStreamBeginCapture_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) {
                   std::shared_ptr<Stream> stream;
                   const CUresult found = call.find(handle, stream, Purpose::ask);
                   if (found != CUDA_SUCCESS) return found;
                   if (static_cast<unsigned>(mode) > CU_STREAM_CAPTURE_MODE_RELAXED) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   return call.machine().captures.begin(stream, mode, thread_label());
               });
}

SIM_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    return run(CallId::cuStreamEndCapture, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        std::shared_ptr<Stream> stream;
        const CUresult found = call.find(handle, stream, Purpose::ask);
        if (found != CUDA_SUCCESS) return found;
        // Without a place for it the capture ends all the same, and its graph goes at once.
        if (graph != nullptr) *graph = nullptr;
        std::shared_ptr<Graph> made;
        const CUresult result = call.machine().captures.end(*stream, thread_label(), made);
        if (made != nullptr && graph != nullptr) {
            *graph = call.machine().captures.keep(std::move(made));
        }
        return result;
    });
}

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return run(CallId::cuStreamIsCapturing, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return ask(call, stream, status); });
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status,
                                              cuuint64_t* id, CUgraph* graph,
                                              const CUgraphNode** nodes, size_t* count) {
    return run(
        CallId::cuStreamGetCaptureInfo_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
        [&](Call& call) { return ask(call, stream, status, id, graph, nodes, nullptr, count); });
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status,
                                              cuuint64_t* id, CUgraph* graph,
                                              const CUgraphNode** nodes,
                                              const CUgraphEdgeData** edges, size_t* count) {
    return run(
        CallId::cuStreamGetCaptureInfo_v3, SIM_RETURN_ADDRESS, Needs::stream, 0,
        [&](Call& call) { return ask(call, stream, status, id, graph, nodes, edges, count); });
}

SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return run(CallId::cuThreadExchangeStreamCaptureMode, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   std::swap(*mode, call.thread().capture_mode);
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                                unsigned long long flags) {
    return run(CallId::cuGraphInstantiateWithFlags, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) { return instantiate(call, executable, graph, flags); });
}

SIM_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph,
                                          CUgraphNode* error_node, char* log, size_t log_bytes) {
    return run(CallId::cuGraphInstantiate_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (error_node != nullptr) *error_node = nullptr;
                   if (log != nullptr && log_bytes > 0) *log = '\0';
                   return instantiate(call, executable, graph, 0);
               });
}

SIM_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                                 CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    return run(CallId::cuGraphInstantiateWithParams, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   // Uploading ahead of the first launch is a matter of time alone.
                   const CUresult result =
                       instantiate(call, executable, graph,
                                   parameters->flags & ~CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
                   parameters->hErrNode_out = nullptr;
                   parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                                                                   : CUDA_GRAPH_INSTANTIATE_ERROR;
                   return result;
               });
}

SIM_EXPORT CUresult cuGraphUpload(CUgraphExec executable, CUstream handle) {
    return run(CallId::cuGraphUpload, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        std::shared_ptr<Stream> stream;
        const CUresult found = call.find(handle, stream);
        if (found != CUDA_SUCCESS) return found;
        return call.machine().captures.find(executable) != nullptr ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
    });
}

SIM_EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    return run(CallId::cuGraphLaunch, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return launch(call, executable, stream); });
}

SIM_EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    return run(CallId::cuGraphGetNodes, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        const auto found = call.machine().captures.find(graph);
        if (found == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const size_t there = found->nodes.size();
        if (nodes == nullptr) {
            *count = there;
            return CUDA_SUCCESS;
        }
        for (size_t i = 0; i < *count; ++i) {
            nodes[i] = i < there ? reinterpret_cast<CUgraphNode>(&found->nodes[i]) : nullptr;
        }
        *count = std::min(*count, there);
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
    return run(CallId::cuGraphExecDestroy, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   Captures& captures = call.machine().captures;
                   if (!captures.drop(executable)) return CUDA_ERROR_INVALID_VALUE;
                   if (captures.keeps_objects()) {
                       start_background(simulation());
                       simulation().changed.notify_all();
                   }
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    return run(CallId::cuGraphDestroy, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        Captures& captures = call.machine().captures;
        if (captures.drop(graph)) return CUDA_SUCCESS;
        const bool being_captured = captures.find(graph) != nullptr;
        return being_captured ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    });
}

SIM_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                                 void* value) {
    return run(CallId::cuDeviceGetGraphMemAttribute, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (device < 0 || device >= call.machine().settings.devices) {
                       return CUDA_ERROR_INVALID_DEVICE;
                   }
                   if (value == nullptr ||
                       static_cast<unsigned>(attribute) > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   // No graph has memory of its own here: a capture that allocates is refused.
                   *static_cast<cuuint64_t*>(value) = 0;
                   return CUDA_SUCCESS;
               });
}

SIM_PER_THREAD(cuStreamBeginCapture_v2, ptsz, (CUstream s, CUstreamCaptureMode m), (s, m))
SIM_PER_THREAD(cuStreamEndCapture, ptsz, (CUstream s, CUgraph* g), (s, g))
SIM_PER_THREAD(cuStreamIsCapturing, ptsz, (CUstream s, CUstreamCaptureStatus* status), (s, status))
SIM_PER_THREAD(cuStreamGetCaptureInfo_v2, ptsz,
               (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                const CUgraphNode** nodes, size_t* count),
               (s, status, id, graph, nodes, count))
SIM_PER_THREAD(cuStreamGetCaptureInfo_v3, ptsz,
               (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count),
               (s, status, id, graph, nodes, edges, count))
SIM_PER_THREAD(cuGraphInstantiateWithParams, ptsz,
               (CUgraphExec * e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p), (e, g, p))
SIM_PER_THREAD(cuGraphUpload, ptsz, (CUgraphExec e, CUstream s), (e, s))
SIM_PER_THREAD(cuGraphLaunch, ptsz, (CUgraphExec e, CUstream s), (e, s))
