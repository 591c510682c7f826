// The hooks that do more than pass the gate. hooks.def says which calls they stand in for. A hook
// may not throw, print or end the program; where it cannot help it makes the call as it came.
#pragma once

#include <tuple>

#include "share/hook.h"
#include "share/program.h"

namespace vramkit::share::hooks {

// Captures. A handle of 0 with per-thread default streams is a stream of each thread: the thread
// stands for it.
inline CUstream capture_key(const CallId& call, CUstream stream) {
    const CUstream known = call.stream(stream);
    if (known != VRAMKIT_STREAM_PER_THREAD) return known;
    return reinterpret_cast<CUstream>(&LaunchGate::mine());
}

template <class... Arguments>
CUresult begin_capture(const Call<CUresult(CUstream, Arguments...)>& call, CUstream stream,
                       Arguments... arguments) {
    // Passes the gate, so that none begins while it is being closed.
    const Passage passage(VRAMKIT_STREAM_LEGACY);
    if (passage.refused() != CUDA_SUCCESS) return passage.refused();
    const CUresult result = call(stream, arguments...);
    if (result == CUDA_SUCCESS) Program::get().capture_begins(capture_key(call, stream));
    return result;
}
CUresult end_capture(const Call<CUresult(CUstream, CUgraph*)>& call, CUstream stream,
                     CUgraph* graph);
CUresult destroy_stream(const Call<CUresult(CUstream)>& call, CUstream stream);

// Contexts. The device is the last parameter in all versions.
template <class... Arguments>
CUresult create_context(const Call<CUresult(CUcontext*, Arguments...)>& call, CUcontext* context,
                        Arguments... arguments) {
    const CUresult result = call(context, arguments...);
    if (result == CUDA_SUCCESS) {
        Program::get().context_made(
            *context, std::get<sizeof...(Arguments) - 1>(std::tuple<Arguments...>(arguments...)));
    }
    return result;
}
CUresult destroy_context(const Call<CUresult(CUcontext)>& call, CUcontext context);
CUresult attach_context(const Call<CUresult(CUcontext*, unsigned int)>& call, CUcontext* context,
                        unsigned int flags);
CUresult detach_context(const Call<CUresult(CUcontext)>& call, CUcontext context);
CUresult retain_primary_context(const Call<CUresult(CUcontext*, CUdevice)>& call,
                                CUcontext* context, CUdevice device);
CUresult release_primary_context(const Call<CUresult(CUdevice)>& call, CUdevice device);
CUresult reset_primary_context(const Call<CUresult(CUdevice)>& call, CUdevice device);

// Memory
CUresult allocate(const Call<CUresult(CUdeviceptr*, size_t)>& call, CUdeviceptr* pointer,
                  size_t bytes);
CUresult allocate_managed(const Call<CUresult(CUdeviceptr*, size_t, unsigned int)>& call,
                          CUdeviceptr* pointer, size_t bytes, unsigned int flags);
CUresult allocate_pitch(
    const Call<CUresult(CUdeviceptr*, size_t*, size_t, size_t, unsigned int)>& call,
    CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned int element);
CUresult free_memory(const Call<CUresult(CUdeviceptr)>& call, CUdeviceptr pointer);
CUresult memory_info(const Call<CUresult(size_t*, size_t*)>& call, size_t* free, size_t* total);
CUresult total_memory(const Call<CUresult(size_t*, CUdevice)>& call, size_t* bytes,
                      CUdevice device);

// Questions about addresses
CUresult address_range(const Call<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>& call,
                       CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer);
CUresult pointer_attribute(const Call<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& call,
                           void* data, CUpointer_attribute attribute, CUdeviceptr pointer);
CUresult pointer_attributes(
    const Call<CUresult(unsigned int, CUpointer_attribute*, void**, CUdeviceptr)>& call,
    unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer);

CUresult set_pointer_attribute(
    const Call<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& call, const void* value,
    CUpointer_attribute attribute, CUdeviceptr pointer);
CUresult ipc_handle(const Call<CUresult(CUipcMemHandle*, CUdeviceptr)>& call,
                    CUipcMemHandle* handle, CUdeviceptr pointer);
CUresult range_handle(const Call<CUresult(void*, CUdeviceptr, size_t, CUmemRangeHandleType,
                                          unsigned long long)>& call,
                      void* handle, CUdeviceptr pointer, size_t bytes, CUmemRangeHandleType type,
                      unsigned long long flags);

// Virtual memory: handles of the program are the engine's, which creates, maps and unmaps them.
CUresult reserve_addresses(
    const Call<CUresult(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)>& call,
    CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr address,
    unsigned long long flags);
CUresult free_addresses(const Call<CUresult(CUdeviceptr, size_t)>& call, CUdeviceptr pointer,
                        size_t bytes);
CUresult create_handle(const Call<CUresult(CUmemGenericAllocationHandle*, size_t,
                                           const CUmemAllocationProp*, unsigned long long)>& call,
                       CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp* properties, unsigned long long flags);
CUresult release_handle(const Call<CUresult(CUmemGenericAllocationHandle)>& call,
                        CUmemGenericAllocationHandle handle);
CUresult retain_handle(const Call<CUresult(CUmemGenericAllocationHandle*, void*)>& call,
                       CUmemGenericAllocationHandle* handle, void* pointer);
CUresult handle_properties(
    const Call<CUresult(CUmemAllocationProp*, CUmemGenericAllocationHandle)>& call,
    CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle);
CUresult map_handle(const Call<CUresult(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                                        unsigned long long)>& call,
                    CUdeviceptr pointer, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult unmap_memory(const Call<CUresult(CUdeviceptr, size_t)>& call, CUdeviceptr pointer,
                      size_t bytes);
CUresult set_access(const Call<CUresult(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)>& call,
                    CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access, size_t count);
CUresult get_access(
    const Call<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>& call,
    unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer);
CUresult export_handle(const Call<CUresult(void*, CUmemGenericAllocationHandle,
                                           CUmemAllocationHandleType, unsigned long long)>& call,
                       void* shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags);

// Stream-ordered memory
CUresult allocate_async(const Call<CUresult(CUdeviceptr*, size_t, CUstream)>& call,
                        CUdeviceptr* pointer, size_t bytes, CUstream stream);
CUresult allocate_from_pool(
    const Call<CUresult(CUdeviceptr*, size_t, CUmemoryPool, CUstream)>& call, CUdeviceptr* pointer,
    size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult free_async(const Call<CUresult(CUdeviceptr, CUstream)>& call, CUdeviceptr pointer,
                    CUstream stream);
CUresult create_pool(const Call<CUresult(CUmemoryPool*, const CUmemPoolProps*)>& call,
                     CUmemoryPool* pool, const CUmemPoolProps* properties);
CUresult destroy_pool(const Call<CUresult(CUmemoryPool)>& call, CUmemoryPool pool);
CUresult trim_pool(const Call<CUresult(CUmemoryPool, size_t)>& call, CUmemoryPool pool,
                   size_t bytes);
CUresult set_pool_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call,
                            CUmemoryPool pool, CUmemPool_attribute attribute, void* value);
CUresult get_pool_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call,
                            CUmemoryPool pool, CUmemPool_attribute attribute, void* value);
CUresult set_pool_access(const Call<CUresult(CUmemoryPool, const CUmemAccessDesc*, size_t)>& call,
                         CUmemoryPool pool, const CUmemAccessDesc* access, size_t count);
CUresult set_device_pool(const Call<CUresult(CUdevice, CUmemoryPool)>& call, CUdevice device,
                         CUmemoryPool pool);
CUresult set_location_pool(
    const Call<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>& call,
    CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool);
// Where the driver gives unused memory of pools back.
void after_wait();
template <class... Arguments>
CUresult synchronize(const Call<CUresult(Arguments...)>& call, Arguments... arguments) {
    const CUresult result = call(arguments...);
    if (result == CUDA_SUCCESS) after_wait();
    return result;
}

}  // namespace vramkit::share::hooks
