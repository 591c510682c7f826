// Binds streams.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "bindings/address.h"
#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/event.h"
#include "bindings/host_function.h"
#include "bindings/invoke.h"
#include "bindings/owner.h"
#include "bindings/stream.h"
#include "bindings/wait.h"
#include "pool/types.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

uint64_t current_id(Device& device, CUstream handle) {
    unsigned long long id = 0;
    VRAMKIT_INVOKE(device, cuStreamGetId, handle, &id);
    return id;
}

std::unique_ptr<Stream> create(std::shared_ptr<Device> device, bool blocking, int priority) {
    CUstream handle = nullptr;
    const unsigned int flags = blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    VRAMKIT_INVOKE(*device, cuStreamCreateWithPriority, &handle, flags, priority);
    unsigned long long id = 0;
    const CallResult done =
        call_released(*device, device->call().cuStreamGetId, "cuStreamGetId", handle, &id);
    auto stream = std::make_unique<Stream>(device, handle, id, Stream::Ownership::owned);
    check(device->session().driver(), done.result, done.symbol);
    return stream;
}

std::unique_ptr<Stream> from_handle(nb::handle given, nb::handle number) {
    auto device = Argument<std::shared_ptr<Device>>::from(given, "device");
    const auto raw = Argument<uintptr_t>::from(number, "handle");
    device->session().require_own_process();
    CUstream handle = reinterpret_cast<CUstream>(raw);
    // The legacy stream's handle is available during captures too, when it has no id.
    const uint64_t id = is_legacy(handle) ? kLegacyStreamId : current_id(*device, handle);
    return std::make_unique<Stream>(std::move(device), handle, id, Stream::Ownership::borrowed);
}

uint64_t id(const Stream& stream) {
    stream.require_usable();
    const bool asked = stream.per_thread() || is_legacy(stream.handle());
    return asked ? current_id(*stream.device(), stream.handle()) : stream.id();
}

uintptr_t raw_handle(const Stream& stream) {
    stream.require_usable();
    stream.set_exported();
    return reinterpret_cast<uintptr_t>(stream.handle());
}

bool blocking(const Stream& stream) {
    stream.require_usable();
    unsigned int flags = 0;
    VRAMKIT_INVOKE(*stream.device(), cuStreamGetFlags, stream.handle(), &flags);
    return (flags & CU_STREAM_NON_BLOCKING) == 0;
}

int priority(const Stream& stream) {
    stream.require_usable();
    int value = 0;
    VRAMKIT_INVOKE(*stream.device(), cuStreamGetPriority, stream.handle(), &value);
    return value;
}

void synchronize(Stream& stream) {
    stream.require_usable();
    VRAMKIT_INVOKE_WAITING_FOR(*stream.device(), cuStreamSynchronize, cuStreamQuery,
                               stream.handle(), stream.per_thread());
}

bool query(Stream& stream) {
    stream.require_usable();
    Device& device = *stream.device();
    const CallResult done =
        call_released(device, device.call().cuStreamQuery, "cuStreamQuery", stream.handle());
    if (done.result == CUDA_ERROR_NOT_READY) return false;
    check(device.session().driver(), done.result, done.symbol);
    return true;
}

nb::object record(Stream& stream, nb::object event) {
    stream.require_usable();
    if (event.is_none()) event = nb::cast(create_event(stream.device(), true));
    const Event& target = Argument<Event>::from(event, "event");
    target.require_usable();
    VRAMKIT_INVOKE(*stream.device(), cuEventRecord, target.handle(), stream.handle());
    return event;
}

void wait(Stream& stream, nb::handle other) {
    stream.require_usable();
    Device& device = *stream.device();
    if (nb::isinstance<Event>(other)) {
        const auto& event = nb::cast<const Event&>(other);
        event.require_usable();
        VRAMKIT_INVOKE(device, cuStreamWaitEvent, stream.handle(), event.handle(), 0U);
        return;
    }
    CUstream before = stream_handle(other);
    // An event belongs to the device of the stream that it is recorded on.
    std::shared_ptr<Device> marked =
        nb::isinstance<Stream>(other) ? nb::cast<const Stream&>(other).device() : stream.device();
    const auto mark = create_event(std::move(marked), false);
    VRAMKIT_INVOKE(*mark->device(), cuEventRecord, mark->handle(), before);
    VRAMKIT_INVOKE(device, cuStreamWaitEvent, stream.handle(), mark->handle(), 0U);
}

void host_function(Stream& stream, nb::callable function) {
    stream.require_usable();
    launch_host_function(*stream.device(), stream.handle(), std::move(function));
}

void require_width(uint64_t value, int width) {
    if (width != 4 && width != 8) {
        refuse_value(nb::int_(width), "width", "4 or 8 bytes");
    }
    if (width == 4 && value > std::numeric_limits<uint32_t>::max()) {
        refuse_value(nb::int_(value), "value", "what fits into 4 bytes; width=8 holds it");
    }
}

void write_value(Stream& stream, nb::handle where, uint64_t value, int width) {
    stream.require_usable();
    require_width(value, width);
    const CUdeviceptr address = address_of(where);
    Device& device = *stream.device();
    const unsigned int flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    if (width == 4) {
        VRAMKIT_INVOKE(device, cuStreamWriteValue32_v2, stream.handle(), address,
                       static_cast<cuuint32_t>(value), flags);
    } else {
        VRAMKIT_INVOKE(device, cuStreamWriteValue64_v2, stream.handle(), address, value, flags);
    }
}

unsigned int condition_flag(const std::string& condition) {
    constexpr std::array<std::pair<std::string_view, unsigned int>, 4> kConditions = {{
        {"geq", CU_STREAM_WAIT_VALUE_GEQ},
        {"eq", CU_STREAM_WAIT_VALUE_EQ},
        {"and", CU_STREAM_WAIT_VALUE_AND},
        {"nor", CU_STREAM_WAIT_VALUE_NOR},
    }};
    for (const auto& [name, flag] : kConditions) {
        if (name == condition) return flag;
    }
    refuse_value(nb::str(condition.c_str(), condition.size()), "condition",
                 "\"geq\", \"eq\", \"and\" or \"nor\"");
}

void wait_value(Stream& stream, nb::handle where, uint64_t value, const std::string& condition,
                int width) {
    stream.require_usable();
    require_width(value, width);
    const unsigned int flags = condition_flag(condition);
    const CUdeviceptr address = address_of(where);
    Device& device = *stream.device();
    if (width == 4) {
        VRAMKIT_INVOKE(device, cuStreamWaitValue32_v2, stream.handle(), address,
                       static_cast<cuuint32_t>(value), flags);
    } else {
        VRAMKIT_INVOKE(device, cuStreamWaitValue64_v2, stream.handle(), address, value, flags);
    }
}

uint64_t id_of(Device& device, nb::handle stream) {
    return current_id(device, stream_handle(stream));
}

std::string describe(const Stream& stream) {
    const std::string where = " of device " + std::to_string(stream.device()->ordinal());
    if (!stream.usable()) return "<Stream" + where + ", closed>";
    if (is_legacy(stream.handle())) return "<legacy default Stream" + where + ">";
    if (stream.per_thread()) return "<per-thread default Stream" + where + ">";
    return "<Stream " + std::to_string(stream.id()) + where + ">";
}

}  // namespace

void bind_stream(nb::module_& module) {
    nb::class_<Stream> stream(module, "Stream", nb::is_weak_referenceable(),
                              "A queue of work on a device; Device.stream() makes one.");
    stream
        .def_static("from_handle", &from_handle, nb::arg("device").none(), nb::arg("handle").none(),
                    nb::sig("def from_handle(device: Device, handle: int) -> Stream"),
                    "A stream that other code made and destroys.")
        .def_prop_ro("device", &Stream::device,
                     nb::for_getter(nb::sig("def device(self) -> object")))
        .def_prop_ro("handle", &raw_handle)
        .def_prop_ro("id", &id, "Unique in the process and never reused, unlike the handle.")
        .def_prop_ro("blocking", &blocking, "True where the legacy default stream waits for it.")
        .def_prop_ro("priority", &priority)
        .def_prop_ro("closed", [](const Stream& self) { return !self.usable(); })
        .def("synchronize", &synchronize, "Wait until everything in the stream has finished.")
        .def("query", &query, "True where nothing is left to do; never waits.")
        .def("close", &Stream::close,
             "Destroy the stream; work left in it still completes. A second time does nothing.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> typing.Self"))
        .def(
            "__exit__", [](Stream& self, nb::args) { self.close(); },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def("__cuda_stream__", [](const Stream& self) { return std::pair(0, raw_handle(self)); })
        .def("__repr__", &describe);
    def(stream, "record", &record, nb::arg("event") = nb::none(),
        nb::sig("def record(self, event: Event | None = None) -> Event"),
        "Record the current point of the stream, in a new event if none is given.");
    def(stream, "wait", &wait, nb::arg("other"), nb::sig("def wait(self, other: object) -> None"),
        "Make later work of this stream wait for an Event, or for the work that another stream (a "
        "Stream or any object with __cuda_stream__) has now. The host does not wait.");
    def(stream, "host_function", &host_function, nb::arg("function"),
        nb::sig("def host_function(self, function: collections.abc.Callable[[], object]) -> None"),
        "Call function() on a thread of the driver when the stream gets there. It must make no "
        "driver call; an exception goes to sys.unraisablehook. A function that has not begun when "
        "Python exits never runs; exit waits for one that has.");
    def(stream, "write_value", &write_value, nb::arg("address"), nb::arg("value"), nb::kw_only(),
        nb::arg("width") = 4,
        nb::sig("def write_value(self, address: object, value: int, *, width: int = 4) -> None"),
        "Write 4 or 8 bytes when the stream gets there.");
    def(stream, "wait_value", &wait_value, nb::arg("address"), nb::arg("value"), nb::kw_only(),
        nb::arg("condition") = "geq", nb::arg("width") = 4,
        nb::sig("def wait_value(self, address: object, value: int, *, condition: str = 'geq', "
                "width: int = 4) -> None"),
        "Hold the stream until the word at the address is >= value (cyclically: \"geq\"), equal to "
        "it (\"eq\"), shares a bit with it (\"and\"), or lacks one (\"nor\").");
    refuse_copies(stream);
    def(module, "create_stream", &create, nb::arg("device"), nb::arg("blocking"),
        nb::arg("priority"));
    def(module, "stream_id", &id_of, nb::arg("device"), nb::arg("stream"),
        nb::sig("def stream_id(device: Device, stream: object) -> int"),
        "The id of a Stream or of any object with __cuda_stream__.");
}

}  // namespace vramkit
