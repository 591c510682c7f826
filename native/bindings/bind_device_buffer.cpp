// Binds device buffers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/device_buffer.h"
#include "bindings/export.h"
#include "bindings/owner.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// For resources written in Python: allocates by their malloc, and frees by their deallocate.
void make(DeviceBuffer* self, nb::object resource, nb::object size, nb::object stream) {
    if (PyType_Check(resource.ptr()) || !nb::hasattr(resource, "malloc") ||
        !nb::hasattr(resource, "deallocate")) {
        const std::string text = std::string("resource is ") + nb::repr(resource).c_str() +
                                 "; it must be one, with malloc and deallocate";
        throw nb::type_error(text.c_str());
    }
    const uint64_t nbytes = positive(size, "size");
    const nb::object made = resource.attr("malloc")(size, stream);
    const auto address = Argument<uint64_t>::from(made, "the address that malloc() gave");
    new (self) DeviceBuffer(std::move(resource), nullptr, address, nbytes, std::move(stream));
}

// vramkit.driver.Span, looked up on first use: the package imports this module.
nb::object at(const DeviceBuffer& self, uint64_t offset, std::optional<uint64_t> nbytes) {
    const uint64_t address = self.address();
    const uint64_t whole = self.nbytes();
    const uint64_t rest = offset < whole ? whole - offset : 0;
    const uint64_t length = nbytes.value_or(rest);
    if (offset > whole || length > rest) {
        const std::string text = "offset is " + std::to_string(offset) + " and nbytes " +
                                 std::to_string(length) + "; the Buffer has " +
                                 std::to_string(whole) + " bytes";
        throw nb::value_error(text.c_str());
    }
    const nb::object span = nb::module_::import_("vramkit.driver.types").attr("Span");
    return span(address + offset, length, "device");
}

nb::dict cuda_array_interface(const DeviceBuffer& self) {
    nb::object handle = nb::int_(0);
    if (!self.stream().is_none()) handle = self.stream().attr("__cuda_stream__")()[1];
    nb::dict result;
    result["shape"] = nb::make_tuple(self.nbytes());
    result["typestr"] = "|u1";
    result["data"] = nb::make_tuple(self.address(), false);
    result["version"] = 3;
    result["strides"] = nb::none();
    // 1 is the legacy default stream: consumers order themselves behind it.
    result["stream"] = handle.equal(nb::int_(0)) ? nb::object(nb::int_(1)) : handle;
    return result;
}

std::string describe(const DeviceBuffer& self) {
    std::array<char, 32> where{"closed"};
    if (!self.closed()) {
        std::snprintf(where.data(), where.size(), "at 0x%llx",
                      static_cast<unsigned long long>(self.address()));
    }
    return "<Buffer of " + std::to_string(self.nbytes()) + " bytes, " + where.data() + ">";
}

// No tp_clear: it refers only to objects that are older, so a cycle contains another object that
// can be cleared, as with tuples.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<DeviceBuffer>(self)->traverse(visit, arg) : 0;
}

const PyType_Slot kSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
    {0, nullptr},
};

}  // namespace

void bind_device_buffer(nb::module_& module) {
    nb::class_<DeviceBuffer> buffer(
        module, "DeviceBuffer", nb::type_slots(kSlots), nb::is_weak_referenceable(),
        "Device memory from a resource, freed by close(), at the end of a with block, or when "
        "dropped.\n\nKeeps its resource and its stream alive. It is freed in the order of the "
        "stream it was allocated on; use it on other streams only with events in between.");
    refuse_copies(buffer);
    def(buffer, "at", &at, nb::arg("offset") = 0, nb::arg("nbytes") = nb::none(),
        nb::sig("def at(self, offset: int = 0, nbytes: int | None = None) -> object"),
        "A part of it, for copies and kernels; the rest from `offset` on where nbytes is not "
        "given. Valid while the Buffer is open.");
    buffer
        .def("__init__", &make, nb::arg("resource").none(), nb::arg("size").none(),
             nb::arg("stream") = nb::none(),
             nb::sig("def __init__(self, resource: object, size: int, "
                     "stream: object | None = None) -> None"))
        .def_prop_ro("address", &DeviceBuffer::address)
        .def_prop_ro("handle", &DeviceBuffer::address, "The address, as cuda.core calls it.")
        .def_prop_ro("nbytes", &DeviceBuffer::nbytes)
        .def_prop_ro("kind", [](const DeviceBuffer&) { return "device"; })
        .def_prop_ro("size", &DeviceBuffer::nbytes, "nbytes, as cuda.core calls it.")
        .def_prop_ro("stream", &DeviceBuffer::stream,
                     nb::for_getter(nb::sig("def stream(self) -> object | None")))
        .def_prop_ro("resource", &DeviceBuffer::resource,
                     nb::for_getter(nb::sig("def resource(self) -> object")))
        .def_prop_ro("closed", &DeviceBuffer::closed)
        .def_prop_ro("device_id", [](const DeviceBuffer& self) { return self.device()->ordinal(); })
        .def_prop_ro("is_device_accessible", [](const DeviceBuffer&) { return true; })
        .def_prop_ro("is_host_accessible", [](const DeviceBuffer&) { return false; })
        .def("close", &DeviceBuffer::close, nb::arg("stream") = nb::none(),
             nb::sig("def close(self, stream: object | None = None) -> None"),
             "Free the block, on the given stream or on that of the allocation. Twice is "
             "harmless.\nWhere consumers of DLPack hold it, it is freed when the last one is done.")
        .def("__len__", &DeviceBuffer::nbytes)
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> typing.Self"))
        .def(
            "__exit__",
            [](DeviceBuffer& self, nb::handle, nb::handle, nb::handle) { self.close(nb::none()); },
            nb::arg().none(), nb::arg().none(), nb::arg().none(),
            nb::sig("def __exit__(self, kind: object, error: object, "
                    "traceback: object) -> None"))
        .def_prop_ro(
            "__cuda_array_interface__", &cuda_array_interface,
            nb::for_getter(nb::sig("def __cuda_array_interface__(self) -> dict[str, object]")))
        .def("__dlpack__", &export_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
             nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(),
             nb::arg("copy") = nb::none(),
             nb::sig("def __dlpack__(self, *, stream: int | None = None, "
                     "max_version: tuple[int, int] | None = None, "
                     "dl_device: tuple[int, int] | None = None, copy: bool | None = None) "
                     "-> object"),
             "Its bytes for another library, whose stream waits for ours. The memory stays until "
             "the consumer is done; the free waits for the consumer's stream.")
        .def("__dlpack_device__", &dlpack_device)
        .def("__repr__", &describe);
}

}  // namespace vramkit
