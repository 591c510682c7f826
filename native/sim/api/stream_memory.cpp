// Exported calls: stream-ordered allocation and freeing.
#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

// From the device's current pool where none is named.
CUresult allocate(Call& call, CUdeviceptr* pointer, std::size_t bytes, CUstream stream_handle,
                  const CUmemoryPool* pool_handle) {
    Machine& machine = call.machine();
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(stream_handle, stream);
    if (found != CUDA_SUCCESS) return found;
    if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // In a capture this would be memory of the graph, which is not simulated.
    if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    const CUresult refused = call.refuse_unsafe();
    if (refused != CUDA_SUCCESS) return refused;
    *pointer = 0;
    if (bytes == 0) return CUDA_SUCCESS;
    if (bytes > machine.space().capacity()) return CUDA_ERROR_OUT_OF_MEMORY;
    call.observe();  // which frees have been reached by now
    // Looked up late: another thread may destroy a pool while this one observes.
    MemoryPool* pool = pool_handle == nullptr ? &machine.pools.current_of(stream->context->device)
                                              : machine.pools.find(*pool_handle);
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const MemoryPool::Grant grant = pool->allocate(
        bytes, stream->context, stream->id, call.site(),
        [&](const Operation* earlier) { return machine.runs_after(*stream, earlier); });
    if (grant.grown > 0) {
        // Memory that a pool takes from the card costs what virtual memory does.
        for (const std::string_view each : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
            call.spend(machine.profile().call_ns(each, grant.grown, false));
        }
    }
    if (grant.address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = grant.address;
    machine.order_for_checker(*stream);
    machine.pool_block_allocated(*stream, grant.address, bytes, call.site());
    if (grant.awaited.empty()) return CUDA_SUCCESS;
    Operation* operation = call.prepare(Kind::wait_event, Lane::none, stream);
    operation->latency = machine.profile().kernels.event_wait_ns;
    for (Operation* free : grant.awaited) Core::depend(operation, free);
    return call.enqueue(operation);
}

CUresult free_in_order(Call& call, CUdeviceptr pointer, CUstream stream_handle) {
    Machine& machine = call.machine();
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(stream_handle, stream);
    if (found != CUDA_SUCCESS) return found;
    // A graph frees only what it has allocated itself, which is not simulated.
    if (stream->capture != nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult refused = call.refuse_unsafe();
    if (refused != CUDA_SUCCESS) return refused;
    if (pointer == 0) return CUDA_SUCCESS;
    const Pools::Found pooled = machine.pools.block_around(pointer);
    const Allocation* plain = machine.space().allocation_at(pointer);
    if (pooled.pool != nullptr && pooled.address == pointer) {
        Operation* operation = call.prepare(Kind::record, Lane::none, stream);
        operation->milestone = std::make_shared<Milestone>(operation);
        machine.order_for_checker(*stream);
        machine.block_freed(*stream, pointer, pooled.block->bytes, pooled.block->id, call.site());
        pooled.pool->free(pointer, stream->id, operation->milestone);
        return call.enqueue(operation);
    }
    if (plain == nullptr || plain->freed) return CUDA_ERROR_INVALID_VALUE;
    // A block of cuMemAlloc: the card has it back once the stream gets here.
    Operation* operation = call.prepare(Kind::free, Lane::none, stream);
    operation->destination = pointer;
    machine.order_for_checker(*stream);
    machine.block_freed(*stream, pointer, plain->bytes, plain->id, call.site());
    machine.space().mark_freed(pointer);
    return call.enqueue(operation);
}

}  // namespace

SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
    return run(CallId::cuMemAllocAsync, SIM_RETURN_ADDRESS, Needs::stream, bytes,
               [&](Call& call) { return allocate(call, pointer, bytes, stream, nullptr); });
}

SIM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool,
                                            CUstream stream) {
    return run(CallId::cuMemAllocFromPoolAsync, SIM_RETURN_ADDRESS, Needs::stream, bytes,
               [&](Call& call) {
                   if (call.machine().pools.find(pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   return allocate(call, pointer, bytes, stream, &pool);
               });
}

SIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return run(CallId::cuMemFreeAsync, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return free_in_order(call, pointer, stream); });
}

SIM_PER_THREAD(cuMemAllocAsync, ptsz, (CUdeviceptr * p, size_t n, CUstream s), (p, n, s))
SIM_PER_THREAD(cuMemAllocFromPoolAsync, ptsz,
               (CUdeviceptr * p, size_t n, CUmemoryPool pool, CUstream s), (p, n, pool, s))
SIM_PER_THREAD(cuMemFreeAsync, ptsz, (CUdeviceptr p, CUstream s), (p, s))
