// Exported calls: initialisation, errors, devices.
#include <cstdio>
#include <cstring>
#include <string>

#include "sim/api/call.h"
#include "sim/api/limits.h"

using namespace vramkit::sim;

namespace {

bool valid(Call& call, CUdevice device) {
    return device >= 0 && device < call.machine().settings.devices;
}

// Texts that cuGetErrorName hands out must outlive the call.
struct ErrorText {
    CUresult code;
    const char* name;
    const char* meaning;
};
constexpr ErrorText kErrors[] = {
#define VRAMKIT_RESULT(name, code, meaning) {name, #name, meaning},
#include "driver/errors.def"
#undef VRAMKIT_RESULT
};

const ErrorText* find_error(CUresult code) {
    for (const ErrorText& error : kErrors) {
        if (error.code == code) return &error;
    }
    return nullptr;
}

int pci_domain(const Machine& machine) {
    return machine.card != nullptr ? static_cast<int>(machine.card->pci_domain()) : 0;
}

int pci_bus(const Machine& machine, int device) {
    return machine.card != nullptr ? static_cast<int>(machine.card->pci_bus()) : device + 1;
}

std::string bus_id(const Machine& machine, int device) {
    char text[32];
    std::snprintf(text, sizeof text, "%04X:%02X:00.0", pci_domain(machine),
                  pci_bus(machine, device));
    return text;
}

CUuuid uuid_of(const Machine& machine, int device) {
    if (machine.card != nullptr) return machine.card->uuid();
    CUuuid uuid;
    std::memcpy(uuid.bytes, "vramkit-sim-gpu", 15);
    uuid.bytes[15] = static_cast<char>(device);
    return uuid;
}

// -1: an attribute that the simulated card does not have.
int attribute_of(const Machine& machine, CUdevice_attribute attribute, int device) {
    const Profile& profile = machine.profile();
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
            return kMostThreadsInBlock;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
            return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
            return kMostBlocks;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
            return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
            return kMostSharedBytes;
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
            return 64 * 1024;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
            return kThreadsOfWarp;
        case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
            return kMostPitch;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
            return profile.clock_khz;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
            return kTextureAlignment;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            return profile.multiprocessors;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
            return profile.memory_clock_khz;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
            return profile.memory_bus_bits;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
            return profile.l2_bytes;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
            return profile.threads_per_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
            return profile.copy_engines;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            return profile.compute_major;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            return profile.compute_minor;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
            return kSharedBytesOfMultiprocessor;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            return kMostSharedBytesAllowed;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
            return kMostBlocksOnMultiprocessor;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
            return pci_bus(machine, device);
        case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
            return pci_domain(machine);
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
            return 1;
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
            return profile.managed.given() ? 1 : 0;
        default:
            // Everything else a program may ask for is a feature that is not simulated.
            return attribute >= 1 && attribute <= 161 ? 0 : -1;
    }
}

}  // namespace

SIM_EXPORT CUresult cuInit(unsigned int flags) {
    return run(CallId::cuInit, SIM_RETURN_ADDRESS, Needs::nothing, 0, [&](Call& call) {
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        call.machine().initialised = true;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuDriverGetVersion(int* version) {
    return run(CallId::cuDriverGetVersion, SIM_RETURN_ADDRESS, Needs::nothing, 0, [&](Call& call) {
        if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *version = call.machine().profile().driver_version;
        return CUDA_SUCCESS;
    });
}

// These two answer in any state of the driver, inside host functions too.
SIM_EXPORT CUresult cuGetErrorName(CUresult code, const char** text) {
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const ErrorText* error = find_error(code);
    *text = error != nullptr ? error->name : nullptr;
    return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGetErrorString(CUresult code, const char** text) {
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const ErrorText* error = find_error(code);
    *text = error != nullptr ? error->meaning : nullptr;
    return error != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Private tables of the real driver, which libcudart needs: not simulated.
SIM_EXPORT CUresult cuGetExportTable(const void** table, const CUuuid* id) {
    return run(CallId::cuGetExportTable, SIM_RETURN_ADDRESS, Needs::nothing, 0, [&](Call&) {
        if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *table = nullptr;
        return CUDA_ERROR_NOT_FOUND;
    });
}

SIM_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    return run(CallId::cuModuleGetLoadingMode, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call&) {
                   if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   *mode = CU_MODULE_EAGER_LOADING;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    return run(CallId::cuDeviceGet, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (!valid(call, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
        *device = ordinal;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuDeviceGetCount(int* count) {
    return run(CallId::cuDeviceGetCount, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   *count = call.machine().settings.devices;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    return run(CallId::cuDeviceGetName, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
        if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
        std::snprintf(name, length, "%s", call.machine().profile().device_name.c_str());
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    return run(CallId::cuDeviceGetUuid_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   *uuid = uuid_of(call.machine(), device);
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    return run(CallId::cuDeviceTotalMem_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   *bytes = call.machine().settings.capacity;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                         CUdevice device) {
    return run(CallId::cuDeviceGetAttribute, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   const int found = attribute_of(call.machine(), attribute, device);
                   if (found < 0) return CUDA_ERROR_INVALID_VALUE;
                   *value = found;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
    return run(CallId::cuDeviceGetPCIBusId, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   const std::string text = bus_id(call.machine(), device);
                   if (id == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   if (static_cast<std::size_t>(length) <= text.size()) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   std::snprintf(id, length, "%s", text.c_str());
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
    return run(CallId::cuDeviceGetByPCIBusId, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (device == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   unsigned domain, bus, slot, function;
                   if (std::sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   for (int each = 0; each < call.machine().settings.devices; ++each) {
                       if (bus_id(call.machine(), each) == id) {
                           *device = each;
                           return CUDA_SUCCESS;
                       }
                   }
                   return CUDA_ERROR_INVALID_DEVICE;
               });
}

SIM_EXPORT CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    return run(CallId::cuDeviceComputeCapability, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   *major = call.machine().profile().compute_major;
                   *minor = call.machine().profile().compute_minor;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    return run(CallId::cuDeviceCanAccessPeer, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device) || !valid(call, peer)) {
                       return CUDA_ERROR_INVALID_DEVICE;
                   }
                   *can = 0;
                   return CUDA_SUCCESS;
               });
}
