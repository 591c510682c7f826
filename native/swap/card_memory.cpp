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
    for (Alias& alias : chunk.aliases) {
        if (alias.ending) continue;
        if ((!alias.mapped && !map(chunk, alias, why)) || !allow(chunk, alias, alias.access, why)) {
            unback(chunk, undoing);
            return false;
        }
    }
    // If the driver refuses, the handle is released when the chunk is unmapped.
    if (chunk.of_handle) return true;
    if (chunk.handle != 0 && call_.cuMemRelease(chunk.handle) == CUDA_SUCCESS) chunk.handle = 0;
    return true;
}

bool CardMemory::map(const Chunk& chunk, Alias& alias, Failure& why) {
    if (failed(call_.cuMemMap(alias.address, chunk.bytes, 0, chunk.handle, 0), "cuMemMap", why)) {
        return false;
    }
    alias.mapped = true;
    return true;
}

bool CardMemory::unmap(const Chunk& chunk, Alias& alias, Failure& why) {
    if (failed(call_.cuMemUnmap(alias.address, chunk.bytes), "cuMemUnmap", why)) return false;
    alias.mapped = false;
    return true;
}

bool CardMemory::allow(const Chunk& chunk, const Alias& alias,
                       std::span<const CUmemAccessDesc> access, Failure& why) {
    return access.empty() ||
           !failed(call_.cuMemSetAccess(alias.address, chunk.bytes, access.data(), access.size()),
                   "cuMemSetAccess", why);
}

bool CardMemory::unback(Chunk& chunk, Failure& why) {
    for (Alias& alias : chunk.aliases) {
        if (alias.mapped && !unmap(chunk, alias, why)) return false;
    }
    if (chunk.mapped) {
        if (failed(call_.cuMemUnmap(chunk.address, chunk.bytes), "cuMemUnmap", why)) return false;
        chunk.mapped = false;
        if (chunk.handle == 0) used_ -= chunk.bytes;
    }
    if (const CUmemGenericAllocationHandle handle = std::exchange(chunk.handle, 0); handle != 0) {
        if (!release(handle, chunk.bytes)) {
            unreleased_.emplace_back(handle, chunk.bytes);
            unreleased_bytes_.fetch_add(chunk.bytes, std::memory_order_relaxed);
        }
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
    unreleased_bytes_.fetch_sub(before - used_, std::memory_order_relaxed);
    return before - used_;
}

}  // namespace vramkit::swap
