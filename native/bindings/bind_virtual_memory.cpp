// Binds the calls that reserve addresses, create physical memory and map one to the other.
#include <nanobind/nanobind.h>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/invoke.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

CUmemAllocationProp properties_of(const Device& device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device.handle();
    return properties;
}

size_t granularity(Device& device) {
    const CUmemAllocationProp properties = properties_of(device);
    size_t bytes = 0;
    VRAMKIT_INVOKE(device, cuMemGetAllocationGranularity, &bytes, &properties,
                   CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return bytes;
}

uint64_t reserve(Device& device, size_t bytes) {
    CUdeviceptr address = 0;
    VRAMKIT_INVOKE(device, cuMemAddressReserve, &address, bytes, size_t{0}, CUdeviceptr{0}, 0ULL);
    return address;
}

void free_address(Device& device, uint64_t address, size_t bytes) {
    VRAMKIT_INVOKE(device, cuMemAddressFree, CUdeviceptr{address}, bytes);
}

uint64_t create(Device& device, size_t bytes) {
    const CUmemAllocationProp properties = properties_of(device);
    CUmemGenericAllocationHandle handle = 0;
    VRAMKIT_INVOKE(device, cuMemCreate, &handle, bytes, &properties, 0ULL);
    return handle;
}

void release(Device& device, uint64_t handle) {
    VRAMKIT_INVOKE(device, cuMemRelease, CUmemGenericAllocationHandle{handle});
}

void map(Device& device, uint64_t address, size_t bytes, uint64_t handle) {
    VRAMKIT_INVOKE(device, cuMemMap, CUdeviceptr{address}, bytes, size_t{0},
                   CUmemGenericAllocationHandle{handle}, 0ULL);
}

void unmap(Device& device, uint64_t address, size_t bytes) {
    VRAMKIT_INVOKE(device, cuMemUnmap, CUdeviceptr{address}, bytes);
}

void set_access(Device& device, uint64_t address, size_t bytes) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device.handle();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    VRAMKIT_INVOKE(device, cuMemSetAccess, CUdeviceptr{address}, bytes, &access, size_t{1});
}

}  // namespace

void bind_virtual_memory(nb::module_& module) {
    def(module, "virtual_granularity", &granularity, nb::arg("device"));
    def(module, "virtual_reserve", &reserve, nb::arg("device"), nb::arg("nbytes"));
    def(module, "virtual_free_address", &free_address, nb::arg("device"), nb::arg("address"),
        nb::arg("nbytes"));
    def(module, "virtual_create", &create, nb::arg("device"), nb::arg("nbytes"));
    def(module, "virtual_release", &release, nb::arg("device"), nb::arg("handle"));
    def(module, "virtual_map", &map, nb::arg("device"), nb::arg("address"), nb::arg("nbytes"),
        nb::arg("handle"));
    def(module, "virtual_unmap", &unmap, nb::arg("device"), nb::arg("address"), nb::arg("nbytes"));
    def(module, "virtual_set_access", &set_access, nb::arg("device"), nb::arg("address"),
        nb::arg("nbytes"));
}

}  // namespace vramkit
