#include "share/virtual_memory.h"

#include "share/launch_gate.h"

namespace vramkit::share::virtual_memory {
namespace {

CUresult error_of(const Failure& why) {
    return why.code != CUDA_SUCCESS ? why.code : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult create(Card& card, CUmemGenericAllocationHandle* handle, std::size_t bytes,
                const CUmemAllocationProp& properties) {
    Failure why;
    const std::uint64_t made = card.create_handle(bytes, properties, why);
    if (made == 0) return why.code != CUDA_SUCCESS ? why.code : CUDA_ERROR_OUT_OF_MEMORY;
    LaunchGate::note_unbacked();
    *handle = made;
    return CUDA_SUCCESS;
}

CUresult release(Card& card, CUmemGenericAllocationHandle handle) {
    bool done = false;
    Failure why;
    card.give_back([&] {
        std::uint64_t freed = 0;
        done = card.engine().release(handle, freed, why);
        return freed;
    });
    return done ? CUDA_SUCCESS : error_of(why);
}

CUresult map(Card& card, CUdeviceptr pointer, std::size_t bytes, std::size_t offset,
             CUmemGenericAllocationHandle handle) {
    if (offset != 0) return CUDA_ERROR_NOT_SUPPORTED;  // as the driver says
    Failure why;
    return card.engine().map(handle, pointer, bytes, why) ? CUDA_SUCCESS : error_of(why);
}

CUresult unmap(Card& card, CUdeviceptr pointer, std::size_t bytes) {
    bool done = false;
    Failure why;
    card.give_back([&] {
        std::uint64_t freed = 0;
        done = card.engine().unmap(pointer, bytes, freed, why);
        return freed;
    });
    return done ? CUDA_SUCCESS : error_of(why);
}

CUresult set_access(Card& card, CUdeviceptr pointer, std::size_t bytes,
                    const CUmemAccessDesc* access, std::size_t count) {
    Failure why;
    return card.engine().set_access(pointer, bytes, {access, count}, why) ? CUDA_SUCCESS
                                                                          : error_of(why);
}

}  // namespace vramkit::share::virtual_memory
