// What the program asks about addresses: answered as for cuMemAlloc's, wherever the memory is now.
#include <algorithm>

#include "share/hooks.h"

namespace vramkit::share::hooks {
namespace {

template <class Value>
void set(void* data, Value value) {
    *static_cast<Value*>(data) = value;
}

// False: an attribute that we do not know.
bool answer(const Card& card, const Card::Owned& owned, CUdeviceptr pointer,
            CUpointer_attribute attribute, void* data, CUresult& result) {
    result = CUDA_SUCCESS;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            set(data, owned.context);
            return true;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            set(data, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
            return true;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            set(data, pointer);
            return true;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            result = CUDA_ERROR_INVALID_VALUE;
            return true;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            set(data, false);
            return true;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:  // unique; the driver counts from 1
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
            set(data, static_cast<unsigned long long>(owned.begin));
            return true;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            set(data, static_cast<int>(card.device()));
            return true;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            set(data, static_cast<CUdeviceptr>(owned.begin));
            return true;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
            set(data, static_cast<size_t>(owned.bytes));
            return true;
        case CU_POINTER_ATTRIBUTE_MAPPED:
            set(data, true);
            return true;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            set(data, static_cast<cuuint64_t>(0));
            return true;
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            set(data, 3U);  // read and write
            return true;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            set(data, static_cast<CUmemoryPool>(nullptr));
            return true;
        default:
            return false;
    }
}

// The driver's own answer, of memory that is on the card where the program has mapped it itself.
template <class Function, class... Arguments>
CUresult ask_driver(const Call<Function>& call, CUdeviceptr pointer, Arguments... arguments) {
    if (Program::get().card_of_mapping(pointer) == nullptr) return call(arguments...);
    const Passage passage(VRAMKIT_STREAM_LEGACY);
    return passage.refused() == CUDA_SUCCESS ? call(arguments...) : passage.refused();
}

}  // namespace

CUresult address_range(const Call<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>& call,
                       CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
    Card* const card = Program::get().card_of(pointer);
    const auto owned = card != nullptr ? card->find(pointer) : std::nullopt;
    if (!owned) return ask_driver(call, pointer, base, bytes, pointer);
    if (base != nullptr) *base = owned->begin;
    if (bytes != nullptr) *bytes = owned->bytes;
    return CUDA_SUCCESS;
}

CUresult pointer_attribute(const Call<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& call,
                           void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    Card* const card = data != nullptr ? Program::get().card_of(pointer) : nullptr;
    const auto owned = card != nullptr ? card->find(pointer) : std::nullopt;
    CUresult result = CUDA_SUCCESS;
    if (owned && answer(*card, *owned, pointer, attribute, data, result)) return result;
    return ask_driver(call, pointer, data, attribute, pointer);
}

CUresult pointer_attributes(
    const Call<CUresult(unsigned int, CUpointer_attribute*, void**, CUdeviceptr)>& call,
    unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer) {
    Card* const card = Program::get().card_of(pointer);
    const auto owned = card != nullptr ? card->find(pointer) : std::nullopt;
    if (!owned || attributes == nullptr || data == nullptr) {
        return ask_driver(call, pointer, count, attributes, data, pointer);
    }
    for (unsigned int index = 0; index < count; ++index) {
        if (data[index] == nullptr) return CUDA_ERROR_INVALID_VALUE;
        CUresult result = CUDA_SUCCESS;
        if (!answer(*card, *owned, pointer, attributes[index], data[index], result)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // As documented: what does not apply is null, and no error.
        if (result != CUDA_SUCCESS) set(data[index], static_cast<void*>(nullptr));
    }
    return CUDA_SUCCESS;
}

}  // namespace vramkit::share::hooks
