// The driver calls behind a chunk's memory, each with its way back.
#include "swap/card_memory.h"

namespace vramkit::swap {

bool CardMemory::back(Chunk& chunk, Failure& why) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device_};
    if (!chunk.uses_card()) {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location;
        if (failed(call_.cuMemCreate(&chunk.handle, chunk.bytes, &properties, 0), "cuMemCreate",
                   why)) {
            chunk.handle = 0;
            return false;
        }
        used_ += chunk.bytes;
    }
    Failure undoing;
    if (!chunk.mapped) {
        if (failed(call_.cuMemMap(chunk.address, chunk.bytes, 0, chunk.handle, 0), "cuMemMap",
                   why)) {
            unback(chunk, undoing);
            return false;
        }
        chunk.mapped = true;
    }
    const CUmemAccessDesc access{location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (failed(call_.cuMemSetAccess(chunk.address, chunk.bytes, &access, 1), "cuMemSetAccess",
               why)) {
        unback(chunk, undoing);
        return false;
    }
    // If the driver refuses, the handle is released when the chunk is unmapped.
    if (chunk.handle != 0 && call_.cuMemRelease(chunk.handle) == CUDA_SUCCESS) chunk.handle = 0;
    return true;
}

bool CardMemory::unback(Chunk& chunk, Failure& why) {
    if (chunk.mapped) {
        if (failed(call_.cuMemUnmap(chunk.address, chunk.bytes), "cuMemUnmap", why)) return false;
        chunk.mapped = false;
        if (chunk.handle == 0) used_ -= chunk.bytes;
    }
    if (const CUmemGenericAllocationHandle handle = std::exchange(chunk.handle, 0); handle != 0) {
        if (!release(handle, chunk.bytes)) unreleased_.emplace_back(handle, chunk.bytes);
    }
    return true;
}

bool CardMemory::release(CUmemGenericAllocationHandle handle, std::uint64_t bytes) {
    if (call_.cuMemRelease(handle) != CUDA_SUCCESS) return false;
    used_ -= bytes;
    return true;
}

std::uint64_t CardMemory::release_again() {
    const std::uint64_t before = used_;
    std::erase_if(unreleased_,
                  [this](const auto& each) { return release(each.first, each.second); });
    return before - used_;
}

}  // namespace vramkit::swap
