// Blocks of device memory, and the handles and mappings of virtual memory.
#include "gate/capturing.h"
#include "gate/current_context.h"
#include "gate/hooks.h"
#include "gate/recording.h"

namespace vramkit::gate::hooks {
namespace {

CUresult allocated(const CallId& call, CUresult result, const CUdeviceptr* pointer,
                   std::size_t bytes, CUstream stream = nullptr, bool captured = false) {
    record({.kind = Kind::allocation,
            .call = call,
            .stream = stream,
            .object = result == CUDA_SUCCESS ? *pointer : 0,
            .bytes = bytes,
            .context = current_context(),
            .code = result,
            .captured = captured});
    return result;
}

}  // namespace

CUresult allocate(const Call<CUresult(CUdeviceptr*, size_t)>& call, CUdeviceptr* pointer,
                  size_t bytes) {
    return allocated(call, call(pointer, bytes), pointer, bytes);
}

CUresult allocate_pitch(
    const Call<CUresult(CUdeviceptr*, size_t*, size_t, size_t, unsigned int)>& call,
    CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned int element) {
    const CUresult result = call(pointer, pitch, width, height, element);
    return allocated(call, result, pointer, (result == CUDA_SUCCESS ? *pitch : width) * height);
}

CUresult allocate_managed(const Call<CUresult(CUdeviceptr*, size_t, unsigned int)>& call,
                          CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
    return allocated(call, call(pointer, bytes, flags), pointer, bytes);
}

CUresult allocate_async(const Call<CUresult(CUdeviceptr*, size_t, CUstream)>& call,
                        CUdeviceptr* pointer, size_t bytes, CUstream stream) {
    const bool captured = is_capturing(call, stream);
    return allocated(call, call(pointer, bytes, stream), pointer, bytes, call.stream(stream),
                     captured);
}

CUresult allocate_from_pool(
    const Call<CUresult(CUdeviceptr*, size_t, CUmemoryPool, CUstream)>& call, CUdeviceptr* pointer,
    size_t bytes, CUmemoryPool pool, CUstream stream) {
    const bool captured = is_capturing(call, stream);
    return allocated(call, call(pointer, bytes, pool, stream), pointer, bytes, call.stream(stream),
                     captured);
}

CUresult free_memory(const Call<CUresult(CUdeviceptr)>& call, CUdeviceptr pointer) {
    const std::uint64_t before = time_now();
    const CUresult result = call(pointer);
    if (result == CUDA_SUCCESS && pointer != 0) {
        record({.kind = Kind::free, .call = call, .object = pointer, .time_ns = before});
    }
    return result;
}

CUresult free_async(const Call<CUresult(CUdeviceptr, CUstream)>& call, CUdeviceptr pointer,
                    CUstream stream) {
    const bool captured = is_capturing(call, stream);
    const std::uint64_t before = time_now();
    const CUresult result = call(pointer, stream);
    if (result == CUDA_SUCCESS && pointer != 0) {
        record({.kind = Kind::free,
                .call = call,
                .stream = call.stream(stream),
                .object = pointer,
                .captured = captured,
                .time_ns = before});
    }
    return result;
}

CUresult create_handle(const Call<CUresult(CUmemGenericAllocationHandle*, size_t,
                                           const CUmemAllocationProp*, unsigned long long)>& call,
                       CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp* properties, unsigned long long flags) {
    const CUresult result = call(handle, bytes, properties, flags);
    const bool on_device =
        properties != nullptr && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (on_device) {  // host memory has handles too
        record({.kind = Kind::handle,
                .call = call,
                .object = result == CUDA_SUCCESS ? *handle : 0,
                .bytes = bytes,
                .context = static_cast<std::uint64_t>(properties->location.id),
                .code = result});
    }
    return result;
}

CUresult retain_handle(const Call<CUresult(CUmemGenericAllocationHandle*, void*)>& call,
                       CUmemGenericAllocationHandle* handle, void* pointer) {
    const CUresult result = call(handle, pointer);
    if (result == CUDA_SUCCESS) {
        record({.kind = Kind::handle_retained, .call = call, .object = *handle});
    }
    return result;
}

CUresult release_handle(const Call<CUresult(CUmemGenericAllocationHandle)>& call,
                        CUmemGenericAllocationHandle handle) {
    const std::uint64_t before = time_now();
    const CUresult result = call(handle);
    if (result == CUDA_SUCCESS) {
        record({.kind = Kind::handle_released, .call = call, .object = handle, .time_ns = before});
    }
    return result;
}

CUresult map_memory(const Call<CUresult(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                                        unsigned long long)>& call,
                    CUdeviceptr pointer, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    const CUresult result = call(pointer, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        record({.kind = Kind::mapping,
                .call = call,
                .object = pointer,
                .bytes = bytes,
                .context = handle});
    }
    return result;
}

CUresult unmap_memory(const Call<CUresult(CUdeviceptr, size_t)>& call, CUdeviceptr pointer,
                      size_t bytes) {
    const std::uint64_t before = time_now();
    const CUresult result = call(pointer, bytes);
    if (result == CUDA_SUCCESS) {
        record({.kind = Kind::unmapping,
                .call = call,
                .object = pointer,
                .bytes = bytes,
                .time_ns = before});
    }
    return result;
}

}  // namespace vramkit::gate::hooks
