// Launches, events, and the points at which the host learns that work is complete.
#include "gate/capturing.h"
#include "gate/current_context.h"
#include "gate/hooks.h"
#include "gate/recording.h"

namespace vramkit::gate::hooks {
namespace {

CUresult launched(const CallId& call, CUresult result, CUstream stream) {
    if (result == CUDA_SUCCESS && !is_capturing(call, stream)) {
        record_repeated({.kind = Kind::launch, .call = call, .stream = call.stream(stream)});
    }
    return result;
}

CUresult ordered(Kind kind, const CallId& call, CUresult result, CUstream stream, CUevent event) {
    if (result == CUDA_SUCCESS && !is_capturing(call, stream)) {
        record({.kind = kind,
                .call = call,
                .stream = call.stream(stream),
                .object = reinterpret_cast<std::uint64_t>(event)});
    }
    return result;
}

CUresult done(const Event& event, CUresult result) {
    if (result == CUDA_SUCCESS) record_repeated(event);
    return result;
}

}  // namespace

CUresult launch_kernel(
    const Call<CUresult(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, unsigned int, unsigned int, CUstream, void**, void**)>& call,
    CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
    CUstream stream, void** parameters, void** extra) {
    return launched(call,
                    call(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                         stream, parameters, extra),
                    stream);
}

CUresult launch_kernel_ex(
    const Call<CUresult(const CUlaunchConfig*, CUfunction, void**, void**)>& call,
    const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    const CUresult result = call(config, function, parameters, extra);
    return config != nullptr ? launched(call, result, config->hStream) : result;
}

CUresult launch_cooperative_kernel(
    const Call<CUresult(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, unsigned int, unsigned int, CUstream, void**)>& call,
    CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
    unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
    CUstream stream, void** parameters) {
    return launched(call,
                    call(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                         stream, parameters),
                    stream);
}

CUresult launch_graph(const Call<CUresult(CUgraphExec, CUstream)>& call, CUgraphExec executable,
                      CUstream stream) {
    return launched(call, call(executable, stream), stream);
}

CUresult begin_capture(const Call<CUresult(CUstream)>& call, CUstream stream) {
    note_capture();
    return call(stream);
}

CUresult begin_capture_v2(const Call<CUresult(CUstream, CUstreamCaptureMode)>& call,
                          CUstream stream, CUstreamCaptureMode mode) {
    note_capture();
    return call(stream, mode);
}

CUresult begin_capture_to_graph(
    const Call<CUresult(CUstream, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
                        CUstreamCaptureMode)>& call,
    CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
    size_t count, CUstreamCaptureMode mode) {
    note_capture();
    return call(stream, graph, dependencies, edges, count, mode);
}

CUresult record_event(const Call<CUresult(CUevent, CUstream)>& call, CUevent event,
                      CUstream stream) {
    return ordered(Kind::event_record, call, call(event, stream), stream, event);
}

CUresult record_event_with_flags(const Call<CUresult(CUevent, CUstream, unsigned int)>& call,
                                 CUevent event, CUstream stream, unsigned int flags) {
    return ordered(Kind::event_record, call, call(event, stream, flags), stream, event);
}

CUresult wait_event(const Call<CUresult(CUstream, CUevent, unsigned int)>& call, CUstream stream,
                    CUevent event, unsigned int flags) {
    return ordered(Kind::event_wait, call, call(stream, event, flags), stream, event);
}

CUresult event_done(const Call<CUresult(CUevent)>& call, CUevent event) {
    return done(
        {.kind = Kind::event_done, .call = call, .object = reinterpret_cast<std::uint64_t>(event)},
        call(event));
}

CUresult stream_done(const Call<CUresult(CUstream)>& call, CUstream stream) {
    return done({.kind = Kind::stream_done, .call = call, .stream = call.stream(stream)},
                call(stream));
}

CUresult current_context_done(const Call<CUresult()>& call) {
    return done({.kind = Kind::context_done, .call = call, .object = current_context()}, call());
}

CUresult context_done(const Call<CUresult(CUcontext)>& call, CUcontext context) {
    return done({.kind = Kind::context_done,
                 .call = call,
                 .object = reinterpret_cast<std::uint64_t>(context)},
                call(context));
}

CUresult destroy_stream(const Call<CUresult(CUstream)>& call, CUstream stream) {
    const std::uint64_t before = time_now();
    const CUresult result = call(stream);
    if (result == CUDA_SUCCESS) {
        record({.kind = Kind::stream_destroyed, .call = call, .stream = stream, .time_ns = before});
    }
    return result;
}

}  // namespace vramkit::gate::hooks
