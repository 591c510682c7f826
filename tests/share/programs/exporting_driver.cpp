// The simulated GPU, and with it the calls by which a driver gives memory to other processes, which
// it lacks: all other names are found in SIMULATED, for which this library is a filter. As a driver
// does, they refuse memory that was not made for them. No other process can open what they give.
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

#include "driver/cuda_abi.h"

struct CUipcMemHandle_st {
    char reserved[64];
};

namespace {

// Not those of the gate, which has the same names and comes first.
template <class Function>
Function* simulated(const char* name) {
    return reinterpret_cast<Function*>(dlsym(dlopen(SIMULATED, RTLD_NOW), name));
}

}  // namespace

extern "C" {

// The address is in the handle. Mapped memory has no address of its own on the device.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
    CUdeviceptr address = 0;
    const CUresult result = simulated<CUresult(void*, CUpointer_attribute, CUdeviceptr)>(
        "cuPointerGetAttribute")(&address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, pointer);
    if (result != CUDA_SUCCESS) return result;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &address, sizeof address);
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    CUmemAllocationProp kind{};
    const CUresult result = simulated<CUresult(CUmemAllocationProp*, CUmemGenericAllocationHandle)>(
        "cuMemGetAllocationPropertiesFromHandle")(&kind, handle);
    if (result != CUDA_SUCCESS) return result;
    if (kind.requestedHandleTypes != type || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const int file = memfd_create("memory", MFD_CLOEXEC);
    memcpy(shareable, &file, sizeof file);
    return file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
}
