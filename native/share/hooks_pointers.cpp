// What the program asks about addresses: answered as for cuMemAlloc's, wherever the memory is now.
#include <optional>

#include "share/hooks.h"
#include "share/log.h"
#include "share/stream_ordered.h"

namespace vramkit::share::hooks {
namespace {

template <class Value>
void set(void* data, Value value) {
    *static_cast<Value*>(data) = value;
}

// What the program has around an address.
struct Known {
    std::uint64_t begin, bytes;
    CUcontext context;  // stream-ordered memory belongs to none
    CUdevice device;
    CUmemoryPool pool;  // of stream-ordered memory
};

std::optional<Known> find(CUdeviceptr pointer) {
    Program& program = Program::get();
    if (program.forked()) return {};
    if (const auto block = StreamOrdered::get().find(pointer)) {
        return Known{block->begin, block->bytes, nullptr, block->device, block->pool};
    }
    Card* const card = program.card_of(pointer);
    const auto owned = card != nullptr ? card->find(pointer) : std::nullopt;
    if (!owned) return {};
    return Known{owned->begin, owned->bytes, owned->context, card->device(), nullptr};
}

bool moves(CUdeviceptr pointer, std::size_t bytes = 1) {
    return find(pointer) || Program::get().card_of_mapping(pointer, bytes) != nullptr;
}

// False: an attribute that we do not know.
bool answer(const Known& owned, CUdeviceptr pointer, CUpointer_attribute attribute, void* data,
            CUresult& result) {
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
            set(data, static_cast<int>(owned.device));
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
            set(data, owned.pool);
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
    const auto owned = find(pointer);
    if (!owned) return ask_driver(call, pointer, base, bytes, pointer);
    if (base != nullptr) *base = owned->begin;
    if (bytes != nullptr) *bytes = owned->bytes;
    return CUDA_SUCCESS;
}

CUresult pointer_attribute(const Call<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& call,
                           void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    const auto owned = data != nullptr ? find(pointer) : std::nullopt;
    CUresult result = CUDA_SUCCESS;
    if (owned && answer(*owned, pointer, attribute, data, result)) return result;
    return ask_driver(call, pointer, data, attribute, pointer);
}

CUresult pointer_attributes(
    const Call<CUresult(unsigned int, CUpointer_attribute*, void**, CUdeviceptr)>& call,
    unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer) {
    const auto owned = find(pointer);
    if (!owned || attributes == nullptr || data == nullptr) {
        return ask_driver(call, pointer, count, attributes, data, pointer);
    }
    for (unsigned int index = 0; index < count; ++index) {
        if (data[index] == nullptr) return CUDA_ERROR_INVALID_VALUE;
        CUresult result = CUDA_SUCCESS;
        if (!answer(*owned, pointer, attributes[index], data[index], result)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // As documented: what does not apply is null, and no error.
        if (result != CUDA_SUCCESS) set(data[index], static_cast<void*>(nullptr));
    }
    return CUDA_SUCCESS;
}

// SYNC_MEMOPS makes copies of this memory wait as other memory's do. The memory behind an address
// changes, so that the driver would forget it: accepted, and without effect.
CUresult set_pointer_attribute(
    const Call<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& call, const void* value,
    CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !moves(pointer)) {
        return call(value, attribute, pointer);
    }
    return CUDA_SUCCESS;
}

CUresult ipc_handle(const Call<CUresult(CUipcMemHandle*, CUdeviceptr)>& call,
                    CUipcMemHandle* handle, CUdeviceptr pointer) {
    if (!moves(pointer)) return call(handle, pointer);
    log("cuIpcGetMemHandle: memory that is swapped cannot be given to another process; run the "
        "program with --ipc");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult range_handle(const Call<CUresult(void*, CUdeviceptr, size_t, CUmemRangeHandleType,
                                          unsigned long long)>& call,
                      void* handle, CUdeviceptr pointer, size_t bytes, CUmemRangeHandleType type,
                      unsigned long long flags) {
    if (!moves(pointer, bytes)) return call(handle, pointer, bytes, type, flags);
    log("cuMemGetHandleForAddressRange: memory that is swapped cannot be given to other devices; "
        "run the program with --ipc");
    return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace vramkit::share::hooks
