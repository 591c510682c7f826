// Binds modules and kernel launches.
#include <nanobind/nanobind.h>

#include <vector>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/invoke.h"
#include "bindings/stream.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// The driver reads PTX up to its final NUL, which Python's bytes always carry.
uint64_t load(Device& device, nb::bytes image) {
    CUmodule handle = nullptr;
    VRAMKIT_INVOKE(device, cuModuleLoadData, &handle, static_cast<const void*>(image.c_str()));
    return reinterpret_cast<uintptr_t>(handle);
}

void unload(Device& device, uint64_t handle) {
    VRAMKIT_INVOKE(device, cuModuleUnload, reinterpret_cast<CUmodule>(handle));
}

uint64_t function(Device& device, uint64_t handle, const std::string& name) {
    CUfunction entry = nullptr;
    VRAMKIT_INVOKE(device, cuModuleGetFunction, &entry, reinterpret_cast<CUmodule>(handle),
                   name.c_str());
    return reinterpret_cast<uintptr_t>(entry);
}

// Every argument is passed as 8 bytes, of which the driver reads as many as the kernel declares:
// right for unsigned integers up to 64 bits on little-endian machines, which is all we have.
void launch(Device& device, uint64_t entry, unsigned int blocks, unsigned int threads,
            nb::handle stream, std::vector<uint64_t> arguments) {
    std::vector<void*> parameters;
    parameters.reserve(arguments.size());
    for (uint64_t& argument : arguments) parameters.push_back(&argument);
    VRAMKIT_INVOKE(device, cuLaunchKernel, reinterpret_cast<CUfunction>(entry), blocks, 1U, 1U,
                   threads, 1U, 1U, 0U, stream_handle(stream), parameters.data(),
                   static_cast<void**>(nullptr));
}

}  // namespace

void bind_launch(nb::module_& module) {
    def(module, "module_load", &load, nb::arg("device"), nb::arg("image"));
    def(module, "module_unload", &unload, nb::arg("device"), nb::arg("module"));
    def(module, "module_function", &function, nb::arg("device"), nb::arg("module"),
        nb::arg("name"));
    def(module, "launch", &launch, nb::arg("device"), nb::arg("function"), nb::arg("blocks"),
        nb::arg("threads"), nb::arg("stream"), nb::arg("arguments"),
        nb::sig("def launch(device: Device, function: int, blocks: int, threads: int, "
                "stream: object, arguments: list[int]) -> None"));
}

}  // namespace vramkit
