#include "gate/no_driver.h"

#include "driver/cuda_abi.h"

namespace vramkit::gate {
namespace {

CUresult missing_call() { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult not_initialised() { return CUDA_ERROR_NOT_INITIALIZED; }

CUresult no_device(unsigned int) { return CUDA_ERROR_NO_DEVICE; }

// 0, as the CUDA runtime says where no driver is installed.
CUresult no_version(int* version) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = 0;
    return CUDA_SUCCESS;
}

// Callers print the text, whatever the result.
CUresult no_text(CUresult, const char** text) {
    if (text != nullptr) *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult no_address(const char*, void** function, int, cuuint64_t) {
    if (function != nullptr) *function = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult no_address_v2(const char*, void** function, int, cuuint64_t,
                       CUdriverProcAddressQueryResult* status) {
    if (function != nullptr) *function = nullptr;
    if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}

}  // namespace

void* answer_without_driver(Export name) {
    switch (name) {
        case Export::cuInit:
            return reinterpret_cast<void*>(&no_device);
        case Export::cuDriverGetVersion:
            return reinterpret_cast<void*>(&no_version);
        case Export::cuGetErrorName:
        case Export::cuGetErrorString:
            return reinterpret_cast<void*>(&no_text);
        case Export::cuGetProcAddress:
            return reinterpret_cast<void*>(&no_address);
        case Export::cuGetProcAddress_v2:
            return reinterpret_cast<void*>(&no_address_v2);
        default:
            return reinterpret_cast<void*>(&not_initialised);
    }
}

void* answer_for_missing_call() { return reinterpret_cast<void*>(&missing_call); }

}  // namespace vramkit::gate
