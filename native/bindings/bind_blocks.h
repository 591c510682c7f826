// Binds what every native resource has: malloc, free, allocate, deallocate, closed, the with
// statement and the repr.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "bindings/device_buffer.h"
#include "bindings/native_resource.h"
#include "bindings/owner.h"

namespace vramkit {

inline void free_block(NativeResource& resource, nanobind::handle address, nanobind::handle size,
                       nanobind::handle stream) {
    const uint64_t block = pointer(address);
    std::optional<uint64_t> bytes;
    if (!size.is_none()) bytes = positive(size, "size");
    resource.free(block, bytes, stream);
}

// The end of a with statement. During an exception, blocks still in use raise no second error that
// would hide it: they and the resource end with the object then.
inline void close_at_exit(nanobind::handle self, nanobind::handle kind, nanobind::handle,
                          nanobind::handle) {
    try {
        self.attr("close")();
    } catch (const nanobind::python_error& error) {
        if (kind.is_none() || !error.matches(PyExc_Exception)) throw;
    }
}

template <typename Engine>
void bind_blocks(nanobind::class_<Engine, NativeResource>& engine) {
    namespace nb = nanobind;
    refuse_copies(engine);
    engine
        .def(
            "malloc",
            [](Engine& self, nb::handle size, nb::handle stream) {
                return self.malloc(positive(size, "size"), stream);
            },
            nb::arg("size").none(), nb::arg("stream") = nb::none(),
            nb::sig("def malloc(self, size: int, stream: object | None = None) -> int"),
            "The address of a block of `size` bytes, for use in stream order (no stream: the "
            "legacy default stream).\nRaises OutOfMemoryError.")
        .def(
            "free",
            [](Engine& self, nb::handle address, nb::handle size, nb::handle stream) {
                free_block(self, address, size, stream);
            },
            nb::arg("address").none(), nb::arg("size") = nb::none(), nb::arg("stream") = nb::none(),
            nb::sig("def free(self, address: int, size: int | None = None, "
                    "stream: object | None = None) -> None"),
            "Free a block at the current point of its stream, or of the given one: all its use "
            "must be ordered before.")
        .def(
            "allocate",
            [](nb::pointer_and_handle<Engine> self, nb::handle size, nb::handle stream) {
                return make_device_buffer(self.h, *self.p, size, stream);
            },
            nb::arg("size").none(), nb::kw_only(), nb::arg("stream") = nb::none(),
            nb::sig("def allocate(self, size: int, *, stream: object | None = None) "
                    "-> DeviceBuffer"),
            "A block as an object that frees itself.")
        .def(
            "deallocate",
            [](Engine& self, nb::handle address, nb::handle size, nb::handle stream) {
                positive(size, "size");  // None is for free() alone
                free_block(self, address, size, stream);
            },
            nb::arg("address").none(), nb::arg("size").none(), nb::kw_only(),
            nb::arg("stream") = nb::none(),
            nb::sig("def deallocate(self, address: int, size: int, *, "
                    "stream: object | None = None) -> None"),
            "free, under the name that goes with allocate.")
        .def_prop_ro("closed", &Engine::closed)
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> typing.Self"))
        .def("__exit__", &close_at_exit, nb::arg("kind") = nb::none(),
             nb::arg("error") = nb::none(), nb::arg("traceback") = nb::none(),
             nb::sig("def __exit__(self, kind: object = None, error: object = None, "
                     "traceback: object = None) -> None"))
        .def("__repr__", [](nb::pointer_and_handle<Engine> self) {
            return self.p->describe(self.h, self.p->closed());
        });
}

}  // namespace vramkit
