// The rules of capture: who may join, what is refused, and what a refusal spoils.
#include "sim/machine/capture.h"

#include <algorithm>
#include <utility>

#include "sim/machine/machine.h"

namespace vramkit::sim {
namespace {

bool blocking_capture(const Capture& capture, const Context& context) {
    return std::any_of(capture.streams.begin(), capture.streams.end(), [&](const Stream* each) {
        return each->context == &context && each->blocking;
    });
}

void add_tips(std::vector<NodeIndex>& tips, const std::vector<NodeIndex>& more) {
    for (const NodeIndex tip : more) {
        if (std::find(tips.begin(), tips.end(), tip) == tips.end()) tips.push_back(tip);
    }
}

// Whether the origin comes after everything that the other streams have captured.
bool joined(const Capture& capture) {
    const auto& nodes = capture.graph->nodes;
    std::vector<bool> before(nodes.size(), false);
    for (const NodeIndex tip : capture.origin->tips) before[tip] = true;
    for (std::size_t i = nodes.size(); i-- > 0;) {
        if (!before[i]) continue;
        for (const NodeIndex earlier : nodes[i].after) before[earlier] = true;
    }
    const auto all_before = [&](const std::vector<NodeIndex>& tips) {
        return std::all_of(tips.begin(), tips.end(), [&](NodeIndex tip) { return before[tip]; });
    };
    return all_before(capture.left) &&
           std::all_of(capture.streams.begin(), capture.streams.end(),
                       [&](const Stream* each) { return all_before(each->tips); });
}

}  // namespace

bool unsafe_while_capturing(CallId id) {
    switch (id) {
        case CallId::cuMemAlloc_v2:
        case CallId::cuMemAllocPitch_v2:
        case CallId::cuMemAllocManaged:
        case CallId::cuMemFree_v2:
        case CallId::cuMemAllocHost_v2:
        case CallId::cuMemHostAlloc:
        case CallId::cuMemFreeHost:
        case CallId::cuMemHostRegister_v2:
        case CallId::cuMemHostUnregister:
        case CallId::cuEventQuery:
        case CallId::cuEventSynchronize:
        case CallId::cuStreamQuery:
        case CallId::cuStreamSynchronize:
        case CallId::cuCtxSynchronize:
        case CallId::cuModuleUnload:
        case CallId::cuMemPoolTrimTo:
        case CallId::cuMemPoolGetAttribute:
            return true;
        default:
            return false;
    }
}

CUresult Captures::begin(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode,
                         std::uint32_t thread) {
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->id = next_id_++;
    capture->mode = mode;
    capture->thread = thread;
    capture->origin = stream.get();
    capture->streams.push_back(stream.get());
    stream->capture = capture;
    active_.push_back(std::move(capture));
    return CUDA_SUCCESS;
}

CUresult Captures::end(Stream& stream, std::uint32_t thread, std::shared_ptr<Graph>& graph) {
    const std::shared_ptr<Capture> capture = stream.capture;
    if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread) {
        finish(capture);
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (capture->origin != &stream) {
        invalidate(*capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    CUresult result = CUDA_SUCCESS;
    if (capture->invalidated) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!joined(*capture)) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    } else {
        graph = capture->graph;
    }
    finish(capture);
    return result;
}

void Captures::finish(const std::shared_ptr<Capture>& capture) {
    capture->ended = true;
    for (Stream* stream : capture->streams) {
        stream->capture.reset();
        stream->tips.clear();
    }
    capture->streams.clear();
    // Events may remember the capture; what its graph refers to is no longer theirs to keep.
    capture->graph.reset();
    std::erase(active_, capture);
}

void Captures::leave(Stream& stream) {
    const std::shared_ptr<Capture> capture = stream.capture;
    if (capture == nullptr) return;
    if (capture->origin == &stream) {
        finish(capture);
    } else {
        add_tips(capture->left, stream.tips);
        std::erase(capture->streams, &stream);
        stream.capture.reset();
    }
}

bool Captures::blocks_legacy(const Context& context) const {
    return std::any_of(active_.begin(), active_.end(),
                       [&](const auto& capture) { return blocking_capture(*capture, context); });
}

CUresult Captures::admit(Stream& stream, Purpose purpose) {
    const Context& context = *stream.context;
    if (&stream == context.legacy.get() && blocks_legacy(context)) {
        for (const auto& capture : active_) {
            if (blocking_capture(*capture, context)) invalidate(*capture);
        }
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream.capture == nullptr) return CUDA_SUCCESS;
    if (purpose == Purpose::wait) {
        invalidate(*stream.capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream.capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult Captures::admit_unsafe(CUstreamCaptureMode mode, std::uint32_t thread) {
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (const auto& capture : active_) {
        const bool own = capture->thread == thread;
        const bool everybodys = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        if (!(own && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) && !everybodys) continue;
        invalidate(*capture);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult Captures::admit_context_wait(const Context& context) {
    CUresult result = CUDA_SUCCESS;
    for (const auto& capture : active_) {
        for (const Stream* stream : capture->streams) {
            if (stream->context != &context) continue;
            invalidate(*capture);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

void Captures::record(Stream& stream, Event& event) {
    if (event.pending != nullptr) event.pending->event = nullptr;
    event.pending = nullptr;
    event.recorded = true;
    event.capture = stream.capture;
    event.tips = stream.tips;
}

CUresult Captures::wait(const std::shared_ptr<Stream>& stream, const Event& event) {
    if (event.capture == nullptr) {
        // An event that was never recorded holds nobody up, in a capture or out of it.
        if (!event.recorded) return CUDA_SUCCESS;
        invalidate(*stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (event.capture->over()) {
        if (stream->capture != nullptr) invalidate(*stream->capture);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->capture != nullptr && stream->capture != event.capture) {
        invalidate(*stream->capture);
        invalidate(*event.capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream->capture == nullptr) {
        if (stream == stream->context->legacy) {
            invalidate(*event.capture);
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
        stream->capture = event.capture;
        event.capture->streams.push_back(stream.get());
    }
    add_tips(stream->tips, event.tips);
    return CUDA_SUCCESS;
}

CUresult Captures::refuse_host(const Event& event, bool waits) {
    if (event.capture == nullptr) return CUDA_SUCCESS;
    if (event.capture->over()) return CUDA_ERROR_INVALID_VALUE;
    if (waits) invalidate(*event.capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

void Captures::add(Stream& stream, const Operation& operation) {
    Capture& capture = *stream.capture;
    auto& nodes = capture.graph->nodes;
    GraphNode& node = nodes.emplace_back();
    node.operation = operation;
    node.operation.stream.reset();
    node.touches = std::move(capture.touches);
    capture.touches.clear();
    for (const CapturedTouch& touch : node.touches) {
        for (const MemoryId id : touch.memory) capture.graph->memory.try_emplace(id);
    }
    node.after = std::exchange(stream.tips, {static_cast<NodeIndex>(nodes.size() - 1)});
}

CUgraph Captures::keep(std::shared_ptr<Graph> graph) {
    const auto handle = reinterpret_cast<CUgraph>(graph.get());
    graphs_.emplace(handle, std::move(graph));
    return handle;
}

std::shared_ptr<Graph> Captures::find(CUgraph handle) const {
    if (const auto it = graphs_.find(handle); it != graphs_.end()) return it->second;
    for (const auto& capture : active_) {
        if (reinterpret_cast<CUgraph>(capture->graph.get()) == handle) return capture->graph;
    }
    return nullptr;
}

bool Captures::drop(CUgraph handle) {
    const auto it = graphs_.find(handle);
    if (it == graphs_.end()) return false;
    it->second->objects.clear();  // executables share the nodes alone
    graphs_.erase(it);
    return true;
}

CUgraphExec Captures::instantiate(const std::shared_ptr<Graph>& graph) {
    const bool complete = graphs_.contains(reinterpret_cast<CUgraph>(graph.get()));
    auto executable = std::make_shared<GraphExecutable>();
    executable->objects = graph->objects;
    executable->graph = graph;
    if (!complete) {
        // Of a graph still being captured: as it is now.
        auto so_far = std::make_shared<Graph>();
        so_far->nodes = graph->nodes;
        so_far->memory = graph->memory;
        executable->graph = std::move(so_far);
    }
    const auto handle = reinterpret_cast<CUgraphExec>(executable.get());
    executables_.emplace(handle, std::move(executable));
    return handle;
}

std::shared_ptr<GraphExecutable> Captures::find(CUgraphExec handle) const {
    const auto it = executables_.find(handle);
    return it == executables_.end() ? nullptr : it->second;
}

bool Captures::drop(CUgraphExec handle) {
    const auto it = executables_.find(handle);
    if (it == executables_.end()) return false;
    if (!it->second->objects.none()) dropped_.push_back(it->second);
    executables_.erase(it);
    return true;
}

void Captures::memory_released(MemoryId id, const Mark& freed) {
    const auto note = [&](Graph* graph) {
        if (graph == nullptr) return;
        const auto found = graph->memory.find(id);
        if (found != graph->memory.end()) found->second = freed;
    };
    for (const auto& capture : active_) note(capture->graph.get());
    for (const auto& [handle, graph] : graphs_) note(graph.get());
    for (const auto& [handle, executable] : executables_) note(executable->graph.get());
}

bool Captures::keeps_objects() {
    std::erase_if(dropped_, [](const auto& executable) { return executable.expired(); });
    return !dropped_.empty();
}

}  // namespace vramkit::sim
