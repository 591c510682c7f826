// Binds events.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/event.h"
#include "bindings/invoke.h"
#include "bindings/owner.h"
#include "bindings/stream.h"
#include "bindings/wait.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

void record(Event& event, nb::handle stream) {
    event.require_usable();
    CUstream handle = stream_handle(stream);
    VRAMKIT_INVOKE(*event.device(), cuEventRecord, event.handle(), handle);
}

void synchronize(Event& event) {
    event.require_usable();
    VRAMKIT_INVOKE_WAITING_FOR(*event.device(), cuEventSynchronize, cuEventQuery, event.handle());
}

bool query(Event& event) {
    event.require_usable();
    Device& device = *event.device();
    const CallResult done =
        call_released(device, device.call().cuEventQuery, "cuEventQuery", event.handle());
    if (done.result == CUDA_ERROR_NOT_READY) return false;
    check(device.session().driver(), done.result, done.symbol);
    return true;
}

double elapsed_since(Event& event, Event& earlier) {
    event.require_usable();
    earlier.require_usable();
    float milliseconds = 0;
    VRAMKIT_INVOKE(*event.device(), cuEventElapsedTime, &milliseconds, earlier.handle(),
                   event.handle());
    return static_cast<double>(milliseconds) * 1e-3;
}

std::string describe(const Event& event) {
    return "<Event of device " + std::to_string(event.device()->ordinal()) +
           (event.usable() ? ">" : ", closed>");
}

}  // namespace

void bind_event(nb::module_& module) {
    nb::class_<Event> event(module, "Event", nb::is_weak_referenceable(),
                            "A point in the work of a stream; Device.event() makes one.");
    event
        .def_prop_ro("device", &Event::device,
                     nb::for_getter(nb::sig("def device(self) -> object")))
        .def_prop_ro("handle",
                     [](const Event& self) {
                         self.require_usable();
                         return reinterpret_cast<uintptr_t>(self.handle());
                     })
        .def_prop_ro("closed", [](const Event& self) { return !self.usable(); })
        .def("synchronize", &synchronize, "Wait until the recorded point is reached.")
        .def("query", &query, "True once the recorded point is reached; never waits.")
        .def("close", &Event::close, "Destroy the event. A second time does nothing.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> typing.Self"))
        .def(
            "__exit__", [](Event& self, nb::args) { self.close(); },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def("__repr__", &describe);
    def(event, "record", &record, nb::arg("stream"),
        nb::sig("def record(self, stream: object) -> None"),
        "Record the current point of a stream: a Stream or any object with __cuda_stream__.");
    def(event, "elapsed_since", &elapsed_since, nb::arg("earlier"),
        nb::sig("def elapsed_since(self, earlier: Event) -> float"),
        "Seconds on the GPU from the earlier event to this one; both must be reached.");
    refuse_copies(event);
    def(module, "create_event", &create_event, nb::arg("device"), nb::arg("timing"));
}

}  // namespace vramkit
