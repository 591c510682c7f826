// Exported calls: device memory, page-locked host memory, and what a pointer is.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "sim/api/call.h"
#include "sim/api/limits.h"

using namespace vramkit::sim;

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr int kLastAttribute = 21;  // of pointers, in the driver that the profile stands for

// These calls wait for all work of the context, though nothing documents that they do.
CUresult wait_as_the_driver_does(Call& call) {
    call.observe();
    const bool relied_on = call.thread().relies_on_waits;
    const CUresult result = call.wait_for_work_so_far(call.context(), relied_on);
    return result != CUDA_SUCCESS ? result : call.context().error;
}

// What is freed only because the process exits was left open: no order is relied on then.
template <class Memory>
void release(Call& call, std::uint64_t address, const Memory& block) {
    if (call.process_exits()) {
        call.machine().left_open.add(block.site, block.bytes);
        call.machine().forget_range(address, block.bytes);
    } else {
        call.machine().release_range(address, block.bytes, block.id, call.site());
    }
}

// cuMemAlloc, of some bytes.
CUresult allocate(Call& call, CUdeviceptr& pointer, std::uint64_t bytes) {
    Space& space = call.machine().space();
    if (bytes > space.capacity()) return CUDA_ERROR_OUT_OF_MEMORY;
    std::uint64_t made = 0;
    const int device = call.context().device;
    std::uint64_t address = space.allocate(device, bytes, &call.context(), call.site(), made);
    if (address == 0) {
        // What idle pools hold is in the way.
        call.machine().pools.trim_all(device);
        address = space.allocate(device, bytes, &call.context(), call.site(), made);
    }
    call.charge(made);
    if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    pointer = address;
    return CUDA_SUCCESS;
}

CUresult allocate_host(Call& call, void** pointer, size_t bytes, unsigned flags) {
    constexpr unsigned known = VRAMKIT_MEMHOSTALLOC_PORTABLE | VRAMKIT_MEMHOSTALLOC_DEVICEMAP |
                               VRAMKIT_MEMHOSTALLOC_WRITECOMBINED;
    if (pointer == nullptr || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    *pointer = nullptr;
    if (bytes == 0) return CUDA_SUCCESS;
    if (bytes > Space::kMostAddresses) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = call.machine().space().allocate_host(bytes, flags, &call.context(), call.site());
    return *pointer != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult release_host(Call& call, void* pointer, bool registered, CUresult not_ours) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    const auto [begin, block] = call.machine().space().host_around(address);
    if (block == nullptr) return not_ours;
    if (begin != address || block->registered != registered) return CUDA_ERROR_INVALID_VALUE;
    call.charge(block->bytes);
    release(call, address, *block);
    const CUresult result = wait_as_the_driver_does(call);
    if (result != CUDA_SUCCESS) return result;
    // Another thread may have been faster.
    if (call.machine().space().host_around(address).first != address) return not_ours;
    call.machine().space().remove_host(address);
    return CUDA_SUCCESS;
}

// Every page of the range must be there: a program that registers what it has not mapped gets an
// error from the real driver too.
bool is_mapped(std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t begin = address / kPage * kPage;
    const std::uint64_t end = (address + bytes + kPage - 1) / kPage * kPage;
    if (end <= begin) return false;
    std::vector<unsigned char> resident((end - begin) / kPage);
    return mincore(reinterpret_cast<void*>(begin), end - begin, resident.data()) == 0;
}

template <class Value>
CUresult give(void* data, Value value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
}

// What is known of one pointer, for cuPointerGetAttribute.
struct Known {
    bool host = false;
    bool device = false;
    Context* context = nullptr;
    int ordinal = 0;
    std::uint64_t start = 0;
    std::uint64_t bytes = 0;
    std::uint64_t id = 0;
    std::uint64_t mapping_start = 0;
    std::uint64_t mapping_bytes = 0;
    bool vmm = false;
    bool accessible = true;
    bool managed = false;
    MemoryPool* pool = nullptr;
};

Known look_up(Call& call, std::uint64_t pointer) {
    Space& space = call.machine().space();
    Known known;
    if (const auto [begin, block] = space.allocation_around(pointer); block != nullptr) {
        known = Known{.device = true,
                      .context = block->context,
                      .ordinal = block->context->device,
                      .start = begin,
                      .bytes = block->bytes,
                      .id = block->id,
                      .mapping_start = begin,
                      .mapping_bytes = block->bytes,
                      .managed = block->managed};
    } else if (const auto [host_begin, host] = space.host_around(pointer); host != nullptr) {
        known = Known{.host = true,
                      .context = host->context,
                      .ordinal = host->context->device,
                      .start = host_begin,
                      .bytes = host->bytes,
                      .id = host->id,
                      .mapping_start = host_begin,
                      .mapping_bytes = host->bytes};
    } else if (const Pools::Found found = call.machine().pools.block_around(pointer);
               found.pool != nullptr) {
        known = Known{.device = true,
                      .ordinal = found.pool->properties.location.id,
                      .start = found.address,
                      .bytes = found.block->bytes,
                      .id = found.block->id,
                      .mapping_start = found.address,
                      .mapping_bytes = found.block->bytes,
                      .pool = found.pool};
    } else if (const auto [map_begin, mapping] = space.mapping_around(pointer);
               mapping != nullptr && mapping->physical->properties.type != 0) {
        // The range of virtual memory is its reservation, however much of it is mapped.
        const auto [reserved, size] = space.reservation_around(pointer);
        known = Known{.device = true,
                      .ordinal = mapping->physical->device,
                      .start = reserved,
                      .bytes = size,
                      .id = mapping->physical->offset + 1,
                      .mapping_start = map_begin,
                      .mapping_bytes = mapping->bytes,
                      .vmm = true,
                      .accessible = mapping->readable};
    }
    return known;
}

CUresult attribute(Call& call, void* data, CUpointer_attribute which, CUdeviceptr pointer) {
    const Known known = look_up(call, pointer);
    if (!known.host && !known.device) return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return give(data, reinterpret_cast<CUcontext>(known.context));
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return give(data, known.device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            if (known.vmm) return CUDA_ERROR_INVALID_VALUE;
            return give(data, pointer);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (!known.host && !known.managed) return CUDA_ERROR_INVALID_VALUE;
            return give(data, reinterpret_cast<void*>(pointer));
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return give(data, static_cast<unsigned char>(known.managed));
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return give(data, static_cast<unsigned char>(0));
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return give(data, static_cast<unsigned long long>(known.id));
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return give(data, known.ordinal);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return give(data, static_cast<CUdeviceptr>(known.start));
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return give(data, static_cast<size_t>(known.bytes));
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return give(data, static_cast<unsigned char>(1));
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return give(data, static_cast<unsigned long long>(0));
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return give(data, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return give(data, reinterpret_cast<CUmemoryPool>(known.pool));
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
            return give(data, static_cast<size_t>(known.mapping_bytes));
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            return give(data, static_cast<CUdeviceptr>(known.mapping_start));
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
            return give(data, static_cast<unsigned long long>(known.id));
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

bool is_attribute(CUpointer_attribute which) {
    return which >= CU_POINTER_ATTRIBUTE_CONTEXT && which <= kLastAttribute;
}

// Size of an attribute's answer, for those that are answered for unknown pointers with zero.
std::size_t attribute_bytes(CUpointer_attribute which) {
    switch (which) {
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return 1;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return 4;
        default:
            return 8;
    }
}

}  // namespace

SIM_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    return run(CallId::cuMemGetInfo_v2, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        // Pages of managed memory move while work runs: what is free is looked at as of now.
        if (!call.machine().space().managed().empty()) call.observe();
        if (free != nullptr) *free = call.machine().space().free_bytes(call.context().device);
        if (total != nullptr) *total = call.machine().space().capacity();
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
    return run(CallId::cuMemAlloc_v2, SIM_RETURN_ADDRESS, Needs::context, kChargeLater,
               [&](Call& call) {
                   if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
                   return allocate(call, *pointer, bytes);
               });
}

SIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width,
                                       size_t height, unsigned int element_bytes) {
    return run(CallId::cuMemAllocPitch_v2, SIM_RETURN_ADDRESS, Needs::context, kChargeLater,
               [&](Call& call) {
                   const bool element =
                       element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
                   if (pointer == nullptr || pitch == nullptr || width == 0 || height == 0 ||
                       width > kMostPitch || !element) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   // Every row may be bound to a texture.
                   const size_t row =
                       (width + kTextureAlignment - 1) / kTextureAlignment * kTextureAlignment;
                   if (height > Space::kMostAddresses / row) return CUDA_ERROR_OUT_OF_MEMORY;
                   const CUresult result = allocate(call, *pointer, row * height);
                   if (result == CUDA_SUCCESS) *pitch = row;
                   return result;
               });
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    return run(CallId::cuMemFree_v2, SIM_RETURN_ADDRESS, Needs::context, kChargeLater,
               [&](Call& call) {
                   if (pointer == 0) return CUDA_SUCCESS;
                   Machine& machine = call.machine();
                   const Pools::Found pooled = machine.pools.block_around(pointer);
                   if (pooled.pool != nullptr && pooled.address == pointer) {
                       // Documented: for such memory the call does not wait.
                       call.charge(0);
                       machine.pool_block_freed_by_host(pointer, pooled.block->bytes,
                                                        pooled.block->id, call.site());
                       pooled.pool->free_by_host(pointer);
                       return CUDA_SUCCESS;
                   }
                   const Allocation* block = call.machine().space().allocation_at(pointer);
                   if (block == nullptr || block->freed) return CUDA_ERROR_INVALID_VALUE;
                   release(call, pointer, *block);
                   const CUresult result = wait_as_the_driver_does(call);
                   // Another thread may have freed it in the meantime.
                   block = call.machine().space().allocation_at(pointer);
                   if (result == CUDA_SUCCESS && block != nullptr && !block->freed) {
                       call.charge(call.machine().space().free(pointer));
                   }
                   return result;
               });
}

SIM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
    return run(CallId::cuMemGetAddressRange_v2, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) {
                   const Known known = look_up(call, pointer);
                   if (!known.host && !known.device) return CUDA_ERROR_NOT_FOUND;
                   // Of virtual memory it is the mapping, and only once it may be used.
                   if (known.vmm && !known.accessible) return CUDA_ERROR_NOT_FOUND;
                   if (base != nullptr) *base = known.mapping_start;
                   if (bytes != nullptr) *bytes = known.mapping_bytes;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
    return run(CallId::cuMemHostAlloc, SIM_RETURN_ADDRESS, Needs::context, bytes,
               [&](Call& call) { return allocate_host(call, pointer, bytes, flags); });
}

SIM_EXPORT CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
    return run(CallId::cuMemAllocHost_v2, SIM_RETURN_ADDRESS, Needs::context, bytes,
               [&](Call& call) { return allocate_host(call, pointer, bytes, 0); });
}

SIM_EXPORT CUresult cuMemFreeHost(void* pointer) {
    return run(CallId::cuMemFreeHost, SIM_RETURN_ADDRESS, Needs::context, kChargeLater,
               [&](Call& call) {
                   if (pointer == nullptr) return CUDA_SUCCESS;
                   return release_host(call, pointer, false, CUDA_ERROR_INVALID_VALUE);
               });
}

SIM_EXPORT CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
    return run(
        CallId::cuMemHostRegister_v2, SIM_RETURN_ADDRESS, Needs::context, bytes, [&](Call& call) {
            const auto address = reinterpret_cast<std::uint64_t>(pointer);
            if (pointer == nullptr || bytes == 0 || bytes > Space::kMostAddresses || flags > 15) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            // The driver works on whole pages.
            const std::uint64_t begin = address / kPage * kPage;
            const std::uint64_t end = (address + bytes + kPage - 1) / kPage * kPage;
            Space& space = call.machine().space();
            const auto [known, block] = space.host_around(address);
            if (block != nullptr && !block->registered) return CUDA_ERROR_INVALID_VALUE;
            if (space.overlaps_host(begin, end - begin)) {
                return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
            }
            if (!is_mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
            space.add_registered(address, bytes, flags, &call.context(), call.site());
            return CUDA_SUCCESS;
        });
}

SIM_EXPORT CUresult cuMemHostUnregister(void* pointer) {
    return run(CallId::cuMemHostUnregister, SIM_RETURN_ADDRESS, Needs::context, kChargeLater,
               [&](Call& call) {
                   if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   return release_host(call, pointer, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
               });
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host,
                                                 unsigned int flags) {
    return run(CallId::cuMemHostGetDevicePointer_v2, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) {
                   const auto address = reinterpret_cast<std::uint64_t>(host);
                   if (device == nullptr || flags != 0 ||
                       call.machine().space().host_around(address).second == nullptr) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   *device = address;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
    return run(CallId::cuMemHostGetFlags, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        const auto address = reinterpret_cast<std::uint64_t>(host);
        const auto [begin, block] = call.machine().space().host_around(address);
        if (flags == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
        // With unified addressing everything is mapped, whether asked for or not.
        *flags = block->flags | VRAMKIT_MEMHOSTALLOC_DEVICEMAP;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which,
                                          CUdeviceptr pointer) {
    return run(CallId::cuPointerGetAttribute, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   return attribute(call, data, which, pointer);
               });
}

SIM_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                           void** data, CUdeviceptr pointer) {
    return run(CallId::cuPointerGetAttributes, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (count == 0 || attributes == nullptr || data == nullptr) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   // Unlike the single form, this one answers for any pointer: what it does not
                   // know is zero, and an ordinal minus two.
                   for (unsigned i = 0; i < count; ++i) {
                       if (!is_attribute(attributes[i])) return CUDA_ERROR_INVALID_VALUE;
                       if (attribute(call, data[i], attributes[i], pointer) == CUDA_SUCCESS) {
                           continue;
                       }
                       std::memset(data[i], 0, attribute_bytes(attributes[i]));
                       if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
                           give(data[i], -2);
                       }
                   }
                   return CUDA_SUCCESS;
               });
}
