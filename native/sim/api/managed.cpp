// Exported calls: managed memory, where its pages should be, and what was said about them.
#include <algorithm>
#include <cstring>

#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

bool is_device(Call& call, int ordinal) {
    return ordinal >= 0 && ordinal < call.machine().settings.devices;
}

// The place that a location means; kNowhere for none. The host of the simulated card is one node.
int place_of(Call& call, const CUmemLocation& location) {
    switch (location.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
            return is_device(call, location.id) ? location.id : kNowhere;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
            return kOnHost;
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
            return location.id == 0 ? kOnHost : kNowhere;
        default:
            return kNowhere;
    }
}

// What the older calls say with one number.
CUmemLocation location_of(CUdevice device) {
    if (device == VRAMKIT_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
    return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

bool is_managed(Call& call, CUdeviceptr pointer, size_t bytes) {
    return call.machine().space().managed().contains(pointer, bytes);
}

CUresult wrong_place(const CUmemLocation& location) {
    const bool device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
}

CUresult prefetch(Call& call, CUdeviceptr pointer, size_t bytes, const CUmemLocation& location,
                  unsigned flags, CUstream handle) {
    if (flags != 0 || !is_managed(call, pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const int place = place_of(call, location);
    if (place == kNowhere) return wrong_place(location);
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream);
    if (found != CUDA_SUCCESS) return found;
    if (stream->capture != nullptr) {
        Captures::invalidate(*stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    Machine& machine = call.machine();
    machine.space().managed().advise(pointer, bytes,
                                     [&](Pages& pages) { pages.advice.prefetched_to = place; });
    Operation* operation = call.prepare(Kind::prefetch, Lane::none, stream);
    if (place >= 0) operation->device = place;
    operation->destination = pointer;
    operation->bytes = bytes;
    operation->value = static_cast<std::uint32_t>(place);
    operation->latency = machine.profile().link.copy_latency_ns;
    // No access of the bytes: it may run beside work that uses them.
    machine.order_for_checker(*stream);
    return call.enqueue(operation);
}

CUresult advise(Call& call, CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                const CUmemLocation& location) {
    if (!is_managed(call, pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const int place = place_of(call, location);
    const bool by =
        advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    if ((by || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION) && place == kNowhere) {
        return wrong_place(location);
    }
    if (by && location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
        location.type != CU_MEM_LOCATION_TYPE_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto change = [&](auto body) {
        call.machine().space().managed().advise(pointer, bytes, body);
        return CUDA_SUCCESS;
    };
    switch (advice) {
        case CU_MEM_ADVISE_SET_READ_MOSTLY:
            return change([](Pages& pages) { pages.advice.read_mostly = true; });
        case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
            // One of the copies stays: that on the card.
            return change([](Pages& pages) {
                pages.advice.read_mostly = false;
                pages.copy_on_host = false;
            });
        case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
            return change([&](Pages& pages) { pages.advice.preferred = place; });
        case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
            return change([](Pages& pages) { pages.advice.preferred = kNowhere; });
        case CU_MEM_ADVISE_SET_ACCESSED_BY:
            return change([&](Pages& pages) { pages.advice.accessed_by |= Advice::bit(place); });
        case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
            return change([&](Pages& pages) { pages.advice.accessed_by &= ~Advice::bit(place); });
    }
    return CUDA_ERROR_INVALID_VALUE;
}

// What all pages of a range have in common.
Advice common_advice(Call& call, CUdeviceptr pointer, size_t bytes) {
    std::optional<Advice> common;
    call.machine().space().managed().each(pointer, bytes, [&](const Pages& pages) {
        if (!common) common = pages.advice;
        common->read_mostly = common->read_mostly && pages.advice.read_mostly;
        if (common->preferred != pages.advice.preferred) common->preferred = kNowhere;
        if (common->prefetched_to != pages.advice.prefetched_to) common->prefetched_to = kNowhere;
        common->accessed_by &= pages.advice.accessed_by;
    });
    return common.value_or(Advice{});
}

int type_of(int place) {
    if (place == kNowhere) return CU_MEM_LOCATION_TYPE_INVALID;
    return place == kOnHost ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult range_attribute(Call& call, void* data, size_t data_bytes, CUmem_range_attribute which,
                         CUdeviceptr pointer, size_t bytes) {
    const bool list = which == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    if (data == nullptr || !is_managed(call, pointer, bytes) || data_bytes == 0 ||
        data_bytes % sizeof(int) != 0 || (!list && data_bytes != sizeof(int))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Advice advice = common_advice(call, pointer, bytes);
    const auto give = [&](int value) {
        std::memcpy(data, &value, sizeof value);
        return CUDA_SUCCESS;
    };
    switch (which) {
        case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
            return give(advice.read_mostly ? 1 : 0);
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
            return give(advice.preferred);
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
            return give(type_of(advice.preferred));
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
            return give(advice.prefetched_to);
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
            return give(type_of(advice.prefetched_to));
        case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
            std::vector<int> places(data_bytes / sizeof(int), VRAMKIT_DEVICE_INVALID);
            auto next = places.begin();
            for (int place = kOnHost; place < call.machine().settings.devices; ++place) {
                const bool set = (advice.accessed_by & Advice::bit(place)) != 0;
                if (set && next != places.end()) *next++ = place;
            }
            std::memcpy(data, places.data(), data_bytes);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
    return run(CallId::cuMemAllocManaged, SIM_RETURN_ADDRESS, Needs::context, bytes,
               [&](Call& call) {
                   if (pointer == nullptr || bytes == 0 ||
                       (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   if (!call.machine().profile().managed.given()) return CUDA_ERROR_NOT_SUPPORTED;
                   if (bytes > Space::kMostAddresses) return CUDA_ERROR_OUT_OF_MEMORY;
                   const std::uint64_t address =
                       call.machine().space().allocate_managed(bytes, &call.context(), call.site());
                   if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
                   *pointer = address;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device,
                                       CUstream stream) {
    return run(CallId::cuMemPrefetchAsync, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        return prefetch(call, pointer, bytes, location_of(device), 0, stream);
    });
}

SIM_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                          unsigned int flags, CUstream stream) {
    return run(CallId::cuMemPrefetchAsync_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return prefetch(call, pointer, bytes, location, flags, stream); });
}

SIM_EXPORT CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                                CUdevice device) {
    return run(CallId::cuMemAdvise, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        return advise(call, pointer, bytes, advice, location_of(device));
    });
}

SIM_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                                   CUmemLocation location) {
    return run(CallId::cuMemAdvise_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) { return advise(call, pointer, bytes, advice, location); });
}

SIM_EXPORT CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes,
                                           CUmem_range_attribute attribute, CUdeviceptr pointer,
                                           size_t bytes) {
    return run(CallId::cuMemRangeGetAttribute, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   return range_attribute(call, data, data_bytes, attribute, pointer, bytes);
               });
}

SIM_EXPORT CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes,
                                            CUmem_range_attribute* attributes, size_t count,
                                            CUdeviceptr pointer, size_t bytes) {
    return run(
        CallId::cuMemRangeGetAttributes, SIM_RETURN_ADDRESS, Needs::initialised, 0,
        [&](Call& call) {
            if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            for (size_t i = 0; i < count; ++i) {
                const CUresult result =
                    range_attribute(call, data[i], data_bytes[i], attributes[i], pointer, bytes);
                if (result != CUDA_SUCCESS) return result;
            }
            return CUDA_SUCCESS;
        });
}

// On a card with concurrent managed access an attachment restricts nobody.
SIM_EXPORT CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t bytes,
                                           unsigned int flags) {
    return run(CallId::cuStreamAttachMemAsync, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) -> CUresult {
                   const bool one = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST ||
                                    flags == CU_MEM_ATTACH_SINGLE;
                   std::shared_ptr<Stream> stream;
                   const CUresult found = call.find(handle, stream);
                   if (found != CUDA_SUCCESS) return found;
                   const Allocation* block = call.machine().space().allocation_at(pointer);
                   // Zero stands for all of it; parts cannot be attached.
                   if (!one || block == nullptr || !block->managed ||
                       (bytes != 0 && bytes != block->bytes)) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   if (flags == CU_MEM_ATTACH_SINGLE && stream == stream->context->legacy) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   call.machine().order_for_checker(*stream);
                   return CUDA_SUCCESS;
               });
}

SIM_PER_THREAD(cuMemPrefetchAsync, ptsz, (CUdeviceptr p, size_t n, CUdevice d, CUstream s),
               (p, n, d, s))
SIM_PER_THREAD(cuMemPrefetchAsync_v2, ptsz,
               (CUdeviceptr p, size_t n, CUmemLocation l, unsigned f, CUstream s), (p, n, l, f, s))
SIM_PER_THREAD(cuStreamAttachMemAsync, ptsz, (CUstream s, CUdeviceptr p, size_t n, unsigned f),
               (s, p, n, f))
