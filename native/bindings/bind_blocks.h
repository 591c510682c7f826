// Binds the calls that every native resource has: malloc, free, allocate, deallocate, device.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <optional>

#include "bindings/device_buffer.h"
#include "bindings/native_resource.h"

namespace vramkit {

inline void free_block(NativeResource& resource, nanobind::handle address, nanobind::handle size,
                       nanobind::handle stream) {
    const uint64_t block = pointer(address);
    std::optional<uint64_t> bytes;
    if (!size.is_none()) bytes = positive(size, "size");
    resource.free(block, bytes, stream);
}

template <typename Engine>
void bind_blocks(nanobind::class_<Engine>& engine) {
    namespace nb = nanobind;
    engine
        .def(
            "malloc",
            [](Engine& self, nb::handle size, nb::handle stream) {
                return self.malloc(positive(size, "size"), stream);
            },
            nb::arg("size"), nb::arg("stream") = nb::none(),
            nb::sig("def malloc(self, size: int, stream: object | None = None) -> int"),
            "The address of `size` bytes, for use in the order of the stream (none: the legacy "
            "default stream).\nRaises OutOfMemoryError.")
        .def(
            "free",
            [](Engine& self, nb::handle address, nb::handle size, nb::handle stream) {
                free_block(self, address, size, stream);
            },
            nb::arg("address"), nb::arg("size") = nb::none(), nb::arg("stream") = nb::none(),
            nb::sig("def free(self, address: int, size: int | None = None, "
                    "stream: object | None = None) -> None"),
            "Gives a block back at this point of its stream, or of the given one: all its use is "
            "ordered before.")
        .def(
            "allocate",
            [](nb::pointer_and_handle<Engine> self, nb::handle size, nb::handle stream) {
                return make_device_buffer(self.h, *self.p, size, stream);
            },
            nb::arg("size"), nb::kw_only(), nb::arg("stream") = nb::none(),
            nb::sig("def allocate(self, size: int, *, stream: object | None = None) "
                    "-> DeviceBuffer"),
            "A block as an object that gives itself back.")
        .def(
            "deallocate",
            [](Engine& self, nb::handle address, nb::handle size, nb::handle stream) {
                free_block(self, address, size, stream);
            },
            nb::arg("address"), nb::arg("size"), nb::kw_only(), nb::arg("stream") = nb::none(),
            nb::sig("def deallocate(self, address: int, size: int, *, "
                    "stream: object | None = None) -> None"),
            "free, under the name that goes with allocate.")
        .def_prop_ro("closed", &Engine::closed);
}

}  // namespace vramkit
