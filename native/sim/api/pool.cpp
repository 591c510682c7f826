// Exported calls: memory pools as objects.
#include <cstring>

#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

bool valid(Call& call, CUdevice device) {
    return device >= 0 && device < call.machine().settings.devices;
}

CUmemoryPool handle(MemoryPool& pool) { return reinterpret_cast<CUmemoryPool>(&pool); }

// Attributes as (number of bytes, value); no bytes for one that is not there.
std::pair<std::size_t, std::uint64_t> value_of(const MemoryPool& pool, CUmemPool_attribute which) {
    switch (which) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            return {4, pool.follow_events};
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
            return {4, pool.opportunistic};
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            return {4, pool.internal_dependencies};
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            return {8, pool.threshold};
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
            return {8, pool.reserved};
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            return {8, pool.reserved_high};
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
            return {8, pool.used};
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            return {8, pool.used_high};
    }
    return {0, 0};
}

CUresult set(MemoryPool& pool, CUmemPool_attribute which, const void* value) {
    std::uint64_t given = 0;
    std::memcpy(&given, value, value_of(pool, which).first);
    switch (which) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            pool.follow_events = given != 0;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
            pool.opportunistic = given != 0;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool.internal_dependencies = given != 0;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            pool.threshold = given;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            if (given != 0) return CUDA_ERROR_INVALID_VALUE;
            pool.reserved_high = pool.reserved;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            if (given != 0) return CUDA_ERROR_INVALID_VALUE;
            pool.used_high = pool.used;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

// The frame of a call about one pool.
template <class Body>
CUresult with_pool(CallId id, void* site, CUmemoryPool pool, Body body) {
    return run(id, site, Needs::initialised, 0, [&](Call& call) -> CUresult {
        MemoryPool* found = call.machine().pools.find(pool);
        return found != nullptr ? body(call, *found) : CUDA_ERROR_INVALID_VALUE;
    });
}

// The frame of a call about a device's pool.
template <class Body>
CUresult with_device(CallId id, void* site, CUdevice device, const void* argument, Body body) {
    return run(id, site, Needs::initialised, 0, [&](Call& call) -> CUresult {
        if (argument == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
        return body(call.machine().pools);
    });
}

}  // namespace

SIM_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    return run(CallId::cuMemPoolCreate, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        if (pool == nullptr || properties == nullptr ||
            properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
            properties->location.type == CU_MEM_LOCATION_TYPE_INVALID) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // Pools of host memory and pools shared between processes are not simulated.
        if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (!valid(call, properties->location.id)) return CUDA_ERROR_INVALID_VALUE;
        *pool = handle(*call.machine().pools.make(*properties));
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    return with_pool(CallId::cuMemPoolDestroy, SIM_RETURN_ADDRESS, pool,
                     [&](Call& call, MemoryPool& found) {
                         Pools& pools = call.machine().pools;
                         if (pools.is_default(&found)) return CUDA_ERROR_INVALID_VALUE;
                         pools.destroy(&found);
                         return CUDA_SUCCESS;
                     });
}

SIM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes) {
    return with_pool(CallId::cuMemPoolTrimTo, SIM_RETURN_ADDRESS, pool,
                     [&](Call& call, MemoryPool&) {
                         call.observe();
                         // Another thread may have destroyed it in the meantime.
                         MemoryPool* found = call.machine().pools.find(pool);
                         if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
                         call.pay_for_return(found->trim(bytes));
                         return CUDA_SUCCESS;
                     });
}

SIM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                          void* value) {
    return with_pool(CallId::cuMemPoolSetAttribute, SIM_RETURN_ADDRESS, pool,
                     [&](Call&, MemoryPool& found) {
                         if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
                         return set(found, attribute, value);
                     });
}

SIM_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                          void* value) {
    return with_pool(CallId::cuMemPoolGetAttribute, SIM_RETURN_ADDRESS, pool,
                     [&](Call&, MemoryPool& found) {
                         const auto [bytes, answer] = value_of(found, attribute);
                         if (value == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
                         std::memcpy(value, &answer, bytes);
                         return CUDA_SUCCESS;
                     });
}

SIM_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access,
                                       size_t count) {
    return with_pool(
        CallId::cuMemPoolSetAccess, SIM_RETURN_ADDRESS, pool, [&](Call& call, MemoryPool& found) {
            if (access == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
            for (size_t i = 0; i < count; ++i) {
                const CUmemLocation& location = access[i].location;
                if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
                if (!valid(call, location.id)) return CUDA_ERROR_INVALID_DEVICE;
                // A card reaches no other's memory, and cannot be kept from its own.
                const bool own = location.id == found.properties.location.id;
                const bool full = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                const bool none = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
                if (!full && !none) return CUDA_ERROR_NOT_SUPPORTED;
                if (own && none) return CUDA_ERROR_INVALID_DEVICE;
                if (!own && full) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
            }
            return CUDA_SUCCESS;
        });
}

SIM_EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool,
                                       CUmemLocation* location) {
    return with_pool(
        CallId::cuMemPoolGetAccess, SIM_RETURN_ADDRESS, pool, [&](Call& call, MemoryPool& found) {
            if (flags == nullptr || location == nullptr ||
                location->type != CU_MEM_LOCATION_TYPE_DEVICE || !valid(call, location->id)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            *flags = location->id == found.properties.location.id
                         ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                         : CU_MEM_ACCESS_FLAGS_PROT_NONE;
            return CUDA_SUCCESS;
        });
}

SIM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    return with_device(CallId::cuDeviceGetDefaultMemPool, SIM_RETURN_ADDRESS, device, pool,
                       [&](Pools& pools) {
                           *pool = handle(pools.default_of(device));
                           return CUDA_SUCCESS;
                       });
}

SIM_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return with_device(CallId::cuDeviceGetMemPool, SIM_RETURN_ADDRESS, device, pool,
                       [&](Pools& pools) {
                           *pool = handle(pools.current_of(device));
                           return CUDA_SUCCESS;
                       });
}

SIM_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    return with_device(CallId::cuDeviceSetMemPool, SIM_RETURN_ADDRESS, device, pool,
                       [&](Pools& pools) {
                           MemoryPool* found = pools.find(pool);
                           if (found == nullptr || found->properties.location.id != device) {
                               return CUDA_ERROR_INVALID_VALUE;
                           }
                           pools.make_current(device, found);
                           return CUDA_SUCCESS;
                       });
}
