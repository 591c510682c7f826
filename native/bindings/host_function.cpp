// The way of a Python callable through the driver's queue and back.
#include "bindings/host_function.h"

#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/invoke.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

void call_python(PyObject* function) {
    const nb::gil_scoped_acquire acquired;
    if (!acquired.is_valid()) return;
    const nb::object callable = nb::steal(function);
    try {
        callable();
    } catch (nb::python_error& error) {
        error.discard_as_unraisable(callable);
    }
}

void run(void* data) {
    const InsideGate gate;
    if (gate.entered()) call_python(static_cast<PyObject*>(data));
}

}  // namespace

void launch_host_function(Device& device, CUstream stream, nb::callable function) {
    PyObject* const data = function.inc_ref().ptr();
    const CallResult done =
        call_released(device, device.call().cuLaunchHostFunc, "cuLaunchHostFunc", stream, &run,
                      static_cast<void*>(data));
    if (done.result != CUDA_SUCCESS) function.dec_ref();
    check(device.session().driver(), done.result, done.symbol);
}

}  // namespace vramkit
