// Virtual memory calls of the program: PyTorch's expandable segments, vramkit's own pool.
#include "share/hooks.h"
#include "share/log.h"

namespace vramkit::share::hooks {
namespace {

CUresult error_of(const Failure& why) {
    return why.code != CUDA_SUCCESS ? why.code : CUDA_ERROR_INVALID_VALUE;
}

// Memory of a card without any special kind. Handles that may be exported are made too: PyTorch
// asks for it and seldom does.
bool can_be_swapped(const CUmemAllocationProp& properties) {
    return properties.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           (properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
            properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
           properties.allocFlags.compressionType == 0 &&
           properties.allocFlags.gpuDirectRDMACapable == 0 && properties.allocFlags.usage == 0;
}

}  // namespace

CUresult create_handle(const Call<CUresult(CUmemGenericAllocationHandle*, size_t,
                                           const CUmemAllocationProp*, unsigned long long)>& call,
                       CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp* properties, unsigned long long flags) {
    Program& program = Program::get();
    if (program.forked() || handle == nullptr || properties == nullptr || flags != 0 ||
        bytes == 0 || bytes % kPage != 0 || !can_be_swapped(*properties)) {
        return call(handle, bytes, properties, flags);
    }
    Failure why;
    Card* const card = program.card(properties->location.id, why);
    if (card == nullptr) return call(handle, bytes, properties, flags);
    if (program.settings().ipc) {
        const CUresult result = call(handle, bytes, properties, flags);
        if (result == CUDA_SUCCESS) card->note_unswappable(static_cast<std::int64_t>(bytes));
        return result;
    }
    const std::uint64_t made = card->create_handle(bytes, *properties, why);
    if (made == 0) return why.code != CUDA_SUCCESS ? why.code : CUDA_ERROR_OUT_OF_MEMORY;
    LaunchGate::note_unbacked();
    *handle = made;
    return CUDA_SUCCESS;
}

CUresult release_handle(const Call<CUresult(CUmemGenericAllocationHandle)>& call,
                        CUmemGenericAllocationHandle handle) {
    Card* const card = Program::get().card_of_handle(handle);
    if (card == nullptr) return call(handle);
    std::uint64_t freed = 0;
    Failure why;
    const bool done = card->engine().release(handle, freed, why);
    if (freed > 0) card->credits().give(freed);
    return done ? CUDA_SUCCESS : error_of(why);
}

CUresult retain_handle(const Call<CUresult(CUmemGenericAllocationHandle*, void*)>& call,
                       CUmemGenericAllocationHandle* handle, void* pointer) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    Card* const card = handle != nullptr ? Program::get().card_of_mapping(address) : nullptr;
    if (card == nullptr) return call(handle, pointer);
    const auto known = card->engine().handle_at(address);
    if (!known || !card->engine().retain(*known)) return CUDA_ERROR_INVALID_VALUE;
    *handle = *known;
    return CUDA_SUCCESS;
}

CUresult handle_properties(
    const Call<CUresult(CUmemAllocationProp*, CUmemGenericAllocationHandle)>& call,
    CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
    Card* const card = properties != nullptr ? Program::get().card_of_handle(handle) : nullptr;
    if (card == nullptr) return call(properties, handle);
    *properties = *card->properties_of(handle);
    return CUDA_SUCCESS;
}

CUresult map_handle(const Call<CUresult(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                                        unsigned long long)>& call,
                    CUdeviceptr pointer, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    Card* const card = Program::get().card_of_handle(handle);
    if (card == nullptr) return call(pointer, bytes, offset, handle, flags);
    if (offset != 0) return CUDA_ERROR_NOT_SUPPORTED;  // as the driver says
    Failure why;
    return card->engine().map(handle, pointer, bytes, why) ? CUDA_SUCCESS : error_of(why);
}

CUresult unmap_memory(const Call<CUresult(CUdeviceptr, size_t)>& call, CUdeviceptr pointer,
                      size_t bytes) {
    Card* const card = Program::get().card_of_mapping(pointer, bytes);
    if (card == nullptr) return call(pointer, bytes);
    std::uint64_t freed = 0;
    Failure why;
    const bool done = card->engine().unmap(pointer, bytes, freed, why);
    if (freed > 0) card->credits().give(freed);
    return done ? CUDA_SUCCESS : error_of(why);
}

CUresult set_access(const Call<CUresult(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)>& call,
                    CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access,
                    size_t count) {
    Card* const card = access != nullptr ? Program::get().card_of_mapping(pointer, bytes) : nullptr;
    if (card == nullptr) return call(pointer, bytes, access, count);
    Failure why;
    return card->engine().set_access(pointer, bytes, {access, count}, why) ? CUDA_SUCCESS
                                                                           : error_of(why);
}

CUresult get_access(
    const Call<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>& call,
    unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
    const bool whole = flags != nullptr && location != nullptr;
    Card* const card = whole ? Program::get().card_of_mapping(pointer) : nullptr;
    if (card == nullptr) return call(flags, location, pointer);
    *flags = card->engine().access(pointer, *location);
    return CUDA_SUCCESS;
}

CUresult export_handle(const Call<CUresult(void*, CUmemGenericAllocationHandle,
                                           CUmemAllocationHandleType, unsigned long long)>& call,
                       void* shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags) {
    if (Program::get().card_of_handle(handle) == nullptr) {
        return call(shareable, handle, type, flags);
    }
    log("cuMemExportToShareableHandle: memory that is swapped cannot be given to another process; "
        "run the program with --ipc");
    return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace vramkit::share::hooks
