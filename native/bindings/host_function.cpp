// Passes a Python callable through the driver's queue.
#include "bindings/host_function.h"

#include "base/stream_ref.h"
#include "bindings/errors.h"
#include "bindings/in_python.h"
#include "bindings/invoke.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

void call(const nb::object& callable) {
    try {
        callable();
    } catch (nb::python_error& error) {
        error.discard_as_unraisable(callable);
    }
}

void run_once(void* data) {
    in_python([&] { call(nb::steal(static_cast<PyObject*>(data))); });
}

// For a graph, which may be launched any number of times.
void run_again(void* data) {
    in_python([&] { call(nb::borrow(static_cast<PyObject*>(data))); });
}

void let_go(void* data) {
    in_python([&] { Py_DECREF(static_cast<PyObject*>(data)); });
}

// The graph that is being captured on the stream; null: none. The legacy default stream cannot be
// captured, and during captures on other streams it must not be queried.
CUgraph graph_under_capture(const DriverTable& call, CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = nullptr;
    if (is_legacy(stream) || call.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE || call.cuStreamGetCaptureInfo_v2 == nullptr) {
        return nullptr;
    }
    call.cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr);
    return graph;
}

// The graph keeps the callable as long as the graph or an executable of it exists. If the driver
// has no user objects, the callable lives until the process ends.
void give_to_graph(const DriverTable& call, CUgraph graph, PyObject* data) {
    CUuserObject object = nullptr;
    if (call.cuUserObjectCreate == nullptr || call.cuGraphRetainUserObject == nullptr ||
        call.cuUserObjectCreate(&object, data, &let_go, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) !=
            CUDA_SUCCESS) {
        return;
    }
    Py_INCREF(data);  // for the user object; if the graph refuses that, the callable stays for good
    if (call.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS) {
        Py_DECREF(data);
    } else {
        call.cuUserObjectRelease(object, 1);
    }
}

}  // namespace

void launch_host_function(Device& device, CUstream stream, nb::callable function) {
    PyObject* const data = function.inc_ref().ptr();
    const DriverTable& call = device.call();
    const CUgraph graph = graph_under_capture(call, stream);
    const CallResult done =
        call_released(device, call.cuLaunchHostFunc, "cuLaunchHostFunc", stream,
                      graph != nullptr ? &run_again : &run_once, static_cast<void*>(data));
    if (done.result != CUDA_SUCCESS) {
        function.dec_ref();
    } else if (graph != nullptr) {
        give_to_graph(call, graph, data);
    }
    check(device.session().driver(), done.result, done.symbol);
}

}  // namespace vramkit
