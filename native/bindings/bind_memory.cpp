// Binds device, pinned and registered memory, by address.
#include <nanobind/nanobind.h>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/invoke.h"
#include "bindings/wait.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

uint64_t alloc(Device& device, size_t bytes) {
    CUdeviceptr address = 0;
    VRAMKIT_INVOKE(device, cuMemAlloc_v2, &address, bytes);
    return address;
}

// The three frees wait for work in flight.
void free(Device& device, uint64_t address) {
    VRAMKIT_INVOKE_WAITING(device, cuMemFree_v2, CUdeviceptr{address});
}

uint64_t alloc_pinned(Device& device, size_t bytes) {
    void* pointer = nullptr;
    const unsigned int flags = VRAMKIT_MEMHOSTALLOC_PORTABLE | VRAMKIT_MEMHOSTALLOC_DEVICEMAP;
    VRAMKIT_INVOKE(device, cuMemHostAlloc, &pointer, bytes, flags);
    return reinterpret_cast<uintptr_t>(pointer);
}

void free_pinned(Device& device, uint64_t address) {
    VRAMKIT_INVOKE_WAITING(device, cuMemFreeHost, reinterpret_cast<void*>(address));
}

void register_host(Device& device, uint64_t address, size_t bytes) {
    const unsigned int flags = VRAMKIT_MEMHOSTREGISTER_PORTABLE | VRAMKIT_MEMHOSTREGISTER_DEVICEMAP;
    VRAMKIT_INVOKE(device, cuMemHostRegister_v2, reinterpret_cast<void*>(address), bytes, flags);
}

void unregister_host(Device& device, uint64_t address) {
    VRAMKIT_INVOKE_WAITING(device, cuMemHostUnregister, reinterpret_cast<void*>(address));
}

// CU_MEMORYTYPE_HOST for pinned and registered memory; everything else, unknown addresses too,
// counts as device memory, so that a stale address meets the driver's error and not the host's.
bool is_host_address(Device& device, uint64_t address) {
    unsigned int type = 0;
    const CallResult done = call_released(device, device.call().cuPointerGetAttribute,
                                          "cuPointerGetAttribute", static_cast<void*>(&type),
                                          CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUdeviceptr{address});
    if (done.result == CUDA_ERROR_INVALID_VALUE) return false;
    check(device.session().driver(), done.result, done.symbol);
    return type == CU_MEMORYTYPE_HOST;
}

}  // namespace

void bind_memory(nb::module_& module) {
    def(module, "memory_alloc", &alloc, nb::arg("device"), nb::arg("nbytes"));
    def(module, "memory_free", &free, nb::arg("device"), nb::arg("address"));
    def(module, "memory_alloc_pinned", &alloc_pinned, nb::arg("device"), nb::arg("nbytes"));
    def(module, "memory_free_pinned", &free_pinned, nb::arg("device"), nb::arg("address"));
    def(module, "memory_register", &register_host, nb::arg("device"), nb::arg("address"),
        nb::arg("nbytes"));
    def(module, "memory_unregister", &unregister_host, nb::arg("device"), nb::arg("address"));
    def(module, "is_host_address", &is_host_address, nb::arg("device"), nb::arg("address"));
}

}  // namespace vramkit
