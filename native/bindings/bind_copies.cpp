// Binds copies and sets. With stream None the synchronous call is made, else the enqueued one.
#include <nanobind/nanobind.h>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/invoke.h"
#include "bindings/stream.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

void copy_to_device(Device& device, uint64_t destination, uint64_t source, size_t bytes,
                    nb::handle stream) {
    const void* const host = reinterpret_cast<const void*>(source);
    if (stream.is_none()) {
        VRAMKIT_INVOKE(device, cuMemcpyHtoD_v2, CUdeviceptr{destination}, host, bytes);
    } else {
        VRAMKIT_INVOKE(device, cuMemcpyHtoDAsync_v2, CUdeviceptr{destination}, host, bytes,
                       stream_handle(stream));
    }
}

void copy_to_host(Device& device, uint64_t destination, uint64_t source, size_t bytes,
                  nb::handle stream) {
    void* const host = reinterpret_cast<void*>(destination);
    if (stream.is_none()) {
        VRAMKIT_INVOKE(device, cuMemcpyDtoH_v2, host, CUdeviceptr{source}, bytes);
    } else {
        VRAMKIT_INVOKE(device, cuMemcpyDtoHAsync_v2, host, CUdeviceptr{source}, bytes,
                       stream_handle(stream));
    }
}

void copy_on_device(Device& device, uint64_t destination, uint64_t source, size_t bytes,
                    nb::handle stream) {
    if (stream.is_none()) {
        VRAMKIT_INVOKE(device, cuMemcpyDtoD_v2, CUdeviceptr{destination}, CUdeviceptr{source},
                       bytes);
    } else {
        VRAMKIT_INVOKE(device, cuMemcpyDtoDAsync_v2, CUdeviceptr{destination}, CUdeviceptr{source},
                       bytes, stream_handle(stream));
    }
}

void copy_on_host(Device& device, uint64_t destination, uint64_t source, size_t bytes,
                  nb::handle stream) {
    if (stream.is_none()) {
        VRAMKIT_INVOKE(device, cuMemcpy, CUdeviceptr{destination}, CUdeviceptr{source}, bytes);
    } else {
        VRAMKIT_INVOKE(device, cuMemcpyAsync, CUdeviceptr{destination}, CUdeviceptr{source}, bytes,
                       stream_handle(stream));
    }
}

void fill(Device& device, uint64_t destination, uint32_t value, size_t count, int width,
          nb::handle stream) {
    const CUdeviceptr address{destination};
    const auto byte = static_cast<unsigned char>(value);
    const auto half = static_cast<unsigned short>(value);
    if (stream.is_none()) {
        switch (width) {
            case 1:
                VRAMKIT_INVOKE(device, cuMemsetD8_v2, address, byte, count);
                return;
            case 2:
                VRAMKIT_INVOKE(device, cuMemsetD16_v2, address, half, count);
                return;
            case 4:
                VRAMKIT_INVOKE(device, cuMemsetD32_v2, address, value, count);
                return;
        }
    } else {
        CUstream queue = stream_handle(stream);
        switch (width) {
            case 1:
                VRAMKIT_INVOKE(device, cuMemsetD8Async, address, byte, count, queue);
                return;
            case 2:
                VRAMKIT_INVOKE(device, cuMemsetD16Async, address, half, count, queue);
                return;
            case 4:
                VRAMKIT_INVOKE(device, cuMemsetD32Async, address, value, count, queue);
                return;
        }
    }
    throw nb::value_error("width must be 1, 2 or 4 bytes");
}

template <typename Function>
void bind_copy(nb::module_& module, const char* name, const char* signature, Function function) {
    def(module, name, function, nb::arg("device"), nb::arg("destination"), nb::arg("source"),
        nb::arg("nbytes"), nb::arg("stream"), nb::sig(signature));
}

}  // namespace

void bind_copies(nb::module_& module) {
    bind_copy(module, "copy_to_device",
              "def copy_to_device(device: Device, destination: int, source: int, nbytes: int, "
              "stream: object | None) -> None",
              &copy_to_device);
    bind_copy(module, "copy_to_host",
              "def copy_to_host(device: Device, destination: int, source: int, nbytes: int, "
              "stream: object | None) -> None",
              &copy_to_host);
    bind_copy(module, "copy_on_device",
              "def copy_on_device(device: Device, destination: int, source: int, nbytes: int, "
              "stream: object | None) -> None",
              &copy_on_device);
    bind_copy(module, "copy_on_host",
              "def copy_on_host(device: Device, destination: int, source: int, nbytes: int, "
              "stream: object | None) -> None",
              &copy_on_host);
    def(module, "fill", &fill, nb::arg("device"), nb::arg("destination"), nb::arg("value"),
        nb::arg("count"), nb::arg("width"), nb::arg("stream"),
        nb::sig("def fill(device: Device, destination: int, value: int, count: int, "
                "width: int, stream: object | None) -> None"));
}

}  // namespace vramkit
