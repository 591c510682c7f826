// Calls of captures and graphs for native tests, which vramkit does not make itself.
#ifndef VRAMKIT_TESTS_NATIVE_GRAPHS_H
#define VRAMKIT_TESTS_NATIVE_GRAPHS_H

#include "gpu.h"

namespace graphs {

// A call by its type in the manifest.
template <class Function>
Function* find(const char* name) {
    auto* found = reinterpret_cast<Function*>(gpu::driver().symbol(name));
    REQUIRE(found != nullptr);
    return found;
}

inline CUresult begin_capture(CUstream stream,
                              CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    static const auto call =
        find<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2");
    return call(stream, mode);
}

inline CUresult end_capture(CUstream stream, CUgraph* graph) {
    static const auto call = find<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture");
    return call(stream, graph);
}

inline CUresult launch(CUgraphExec executable, CUstream stream) {
    static const auto call = find<CUresult(CUgraphExec, CUstream)>("cuGraphLaunch");
    return call(executable, stream);
}

inline CUresult destroy(CUgraph graph) {
    static const auto call = find<CUresult(CUgraph)>("cuGraphDestroy");
    return call(graph);
}

inline CUresult destroy(CUgraphExec executable) {
    static const auto call = find<CUresult(CUgraphExec)>("cuGraphExecDestroy");
    return call(executable);
}

inline CUgraphExec instantiate(CUgraph graph) {
    static const auto call =
        find<CUresult(CUgraphExec*, CUgraph, unsigned long long)>("cuGraphInstantiateWithFlags");
    CUgraphExec executable = nullptr;
    REQUIRE(call(&executable, graph, 0) == CUDA_SUCCESS);
    return executable;
}

// Ends a capture and makes its graph ready to be launched.
inline CUgraphExec end_and_instantiate(CUstream stream) {
    CUgraph graph = nullptr;
    REQUIRE(end_capture(stream, &graph) == CUDA_SUCCESS);
    const CUgraphExec executable = instantiate(graph);
    CHECK_EQUAL(destroy(graph), CUDA_SUCCESS);
    return executable;
}

}  // namespace graphs

#endif
