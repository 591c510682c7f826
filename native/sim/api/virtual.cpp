// Exported calls: virtual memory management, with the limits measured on a real card: a handle is
// mapped whole or not at all, and a range is changed only in whole mappings.
#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

bool is_device(Call& call, const CUmemLocation& location) {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
           location.id < call.machine().settings.devices;
}

std::shared_ptr<Physical> find(Call& call, CUmemGenericAllocationHandle handle) {
    const auto it = call.machine().handles.find(handle);
    return it == call.machine().handles.end() ? nullptr : it->second;
}

CUmemGenericAllocationHandle add_handle(Call& call, const std::shared_ptr<Physical>& physical) {
    Machine& machine = call.machine();
    for (const auto& [handle, known] : machine.handles) {
        if (known == physical) return handle;
    }
    const CUmemGenericAllocationHandle handle = machine.next_handle++;
    machine.handles.emplace(handle, physical);
    return handle;
}

}  // namespace

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                                  const CUmemAllocationProp* properties,
                                                  CUmemAllocationGranularity_flags option) {
    return run(CallId::cuMemGetAllocationGranularity, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   // The driver answers whatever the properties say.
                   if (granularity == nullptr || properties == nullptr || option > 1) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   *granularity = call.machine().space().granularity();
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment,
                                        CUdeviceptr wish, unsigned long long flags) {
    return run(CallId::cuMemAddressReserve, SIM_RETURN_ADDRESS, Needs::initialised, bytes,
               [&](Call& call) {
                   Space& space = call.machine().space();
                   if (pointer == nullptr || bytes == 0 || bytes % space.granularity() != 0 ||
                       (alignment & (alignment - 1)) != 0 || flags != 0) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   if (bytes > Space::kMostAddresses) return CUDA_ERROR_OUT_OF_MEMORY;
                   const std::uint64_t address = space.reserve(bytes, alignment, wish);
                   if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
                   *pointer = address;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    return run(CallId::cuMemAddressFree, SIM_RETURN_ADDRESS, Needs::initialised, bytes,
               [&](Call& call) {
                   Space& space = call.machine().space();
                   if (!space.is_reservation(pointer, bytes) ||
                       !space.mappings_in(pointer, bytes).empty()) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   space.unreserve(pointer);
                   call.machine().blocks.forget(pointer, bytes);
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                const CUmemAllocationProp* properties, unsigned long long flags) {
    return run(CallId::cuMemCreate, SIM_RETURN_ADDRESS, Needs::initialised, bytes, [&](Call& call) {
        Space& space = call.machine().space();
        if (handle == nullptr || properties == nullptr || flags != 0 || bytes == 0 ||
            bytes % space.granularity() != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (!is_device(call, properties->location)) return CUDA_ERROR_INVALID_DEVICE;
        // Memory may be made to be shared, as on a real card; the sharing itself is not simulated.
        switch (properties->requestedHandleTypes) {
            case CU_MEM_HANDLE_TYPE_NONE:
            case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
                break;
            case CU_MEM_HANDLE_TYPE_FABRIC:
                return CUDA_ERROR_NOT_PERMITTED;
            default:
                return CUDA_ERROR_INVALID_VALUE;
        }
        const auto physical = space.create(properties->location.id, bytes, *properties);
        if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
        *handle = add_handle(call, physical);
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return run(CallId::cuMemRelease, SIM_RETURN_ADDRESS, Needs::initialised, kChargeLater,
               [&](Call& call) {
                   const auto physical = find(call, handle);
                   if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   call.charge(physical->bytes);
                   if (--physical->handles == 0) {
                       call.machine().handles.erase(handle);
                       call.machine().drop_physical(physical);
                   }
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                             CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return run(CallId::cuMemMap, SIM_RETURN_ADDRESS, Needs::initialised, bytes, [&](Call& call) {
        Space& space = call.machine().space();
        const auto physical = find(call, handle);
        if (physical == nullptr || flags != 0 || bytes == 0 || pointer % space.granularity() != 0 ||
            bytes % space.granularity() != 0 || !space.inside_reservation(pointer, bytes)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (offset != 0 || bytes != physical->bytes) return CUDA_ERROR_NOT_SUPPORTED;
        if (!space.mappings_in(pointer, bytes).empty() || space.cuts_mapping(pointer, bytes)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        return space.map(pointer, physical) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    });
}

SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    return run(
        CallId::cuMemUnmap, SIM_RETURN_ADDRESS, Needs::initialised, kChargeLater, [&](Call& call) {
            Machine& machine = call.machine();
            Space& space = machine.space();
            if (bytes == 0 || !space.inside_reservation(pointer, bytes) ||
                space.cuts_mapping(pointer, bytes)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            // Work that is over by now was done before the memory goes.
            call.observe();
            // Each mapping costs as much as a call of its own; a range that holds none,
            // nothing.
            for (const std::uint64_t begin : space.mappings_in(pointer, bytes)) {
                const Mapping mapping = *space.mapping_around(begin).second;
                call.charge(mapping.bytes);
                if (!call.process_exits()) {
                    machine.release_range(begin, mapping.bytes, begin | kMappingId, call.site());
                }
                space.unmap(begin);
                machine.drop_physical(mapping.physical);
            }
            return CUDA_SUCCESS;
        });
}

SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access,
                                   size_t count) {
    return run(CallId::cuMemSetAccess, SIM_RETURN_ADDRESS, Needs::initialised, kChargeLater,
               [&](Call& call) {
                   Space& space = call.machine().space();
                   if (access == nullptr || count == 0 || bytes == 0 ||
                       space.cuts_mapping(pointer, bytes)) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   for (size_t i = 0; i < count; ++i) {
                       if (!is_device(call, access[i].location)) return CUDA_ERROR_INVALID_VALUE;
                   }
                   // Gaps between mappings are passed over, as the driver does.
                   const auto found = space.mappings_in(pointer, bytes);
                   if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
                   for (const std::uint64_t begin : found) {
                       Mapping& mapping = *space.mapping_around(begin).second;
                       call.charge(mapping.bytes);
                       for (size_t i = 0; i < count; ++i) {
                           if (access[i].location.id != mapping.physical->device) continue;
                           mapping.readable = access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
                           mapping.writable = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                       }
                   }
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                   CUdeviceptr pointer) {
    return run(CallId::cuMemGetAccess, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        const auto [begin, mapping] = call.machine().space().mapping_around(pointer);
        if (flags == nullptr || location == nullptr || mapping == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *flags = mapping->writable   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : mapping->readable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                void* pointer) {
    return run(CallId::cuMemRetainAllocationHandle, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   const auto [begin, mapping] = call.machine().space().mapping_around(
                       reinterpret_cast<std::uint64_t>(pointer));
                   if (handle == nullptr || mapping == nullptr ||
                       mapping->physical->properties.type == CU_MEM_ALLOCATION_TYPE_INVALID) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   ++mapping->physical->handles;
                   *handle = add_handle(call, mapping->physical);
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                           CUmemGenericAllocationHandle handle) {
    return run(CallId::cuMemGetAllocationPropertiesFromHandle, SIM_RETURN_ADDRESS,
               Needs::initialised, 0, [&](Call& call) {
                   const auto physical = find(call, handle);
                   if (properties == nullptr || physical == nullptr) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   *properties = physical->properties;
                   return CUDA_SUCCESS;
               });
}
