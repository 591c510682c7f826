// Stream-ordered allocations of the program, and its pools.
#include "share/hooks.h"
#include "share/log.h"
#include "share/stream_ordered.h"
#include "share/unswappable.h"

namespace vramkit::share::hooks {
namespace {

// Memory that the driver gave out: none of it can leave.
CUresult given_by_driver(CUresult result, const StreamOrdered::Place& place,
                         const CUdeviceptr* pointer, std::size_t bytes) {
    static std::atomic<bool> told{false};
    if (result != CUDA_SUCCESS) return result;
    if (place.captured) {
        // How much of the card graphs keep for their allocations, the driver decides: the agent
        // asks it (Card::look_at_graphs()).
        if (!told.exchange(true)) {
            log("a graph allocates memory, %zu bytes the first time: it stays on the card", bytes);
        }
    } else if (place.card != nullptr) {
        Unswappable::get().note(place.card->device(), *pointer, bytes, place.context);
    }
    return result;
}

bool is_served(const StreamOrdered::Place& place, const ProgramPoolRef& from) {
    return place.engine != nullptr && from != nullptr &&
           from->ours.load(std::memory_order_relaxed) && from->device == place.card->device();
}

// A pool whose memory is ours; null: another one, or we are in a forked child.
ProgramPoolRef own_pool(CUmemoryPool handle) {
    if (Program::get().forked()) return nullptr;
    ProgramPoolRef pool = StreamOrdered::get().pool(handle);
    return pool != nullptr && pool->ours.load(std::memory_order_relaxed) ? pool : nullptr;
}

// An allocation of cuMemAlloc, which may be freed in a stream too: what the stream has done with it
// is over before it is free. None: it is none, or the driver says what is wrong.
std::optional<CUresult> free_plain(const CallId& call, CUdeviceptr pointer, CUstream stream) {
    Program& program = Program::get();
    Card* const card = program.card_of(pointer);
    const auto owned = card != nullptr ? card->find(pointer) : std::nullopt;
    if (!owned || owned->begin != pointer) return {};
    const StreamOrdered::Place place = StreamOrdered::get().place_of(call, stream);
    if (place.card == nullptr || place.captured) return {};
    if (program.call().cuStreamSynchronize(place.stream.handle) != CUDA_SUCCESS) {
        return CUDA_ERROR_UNKNOWN;
    }
    Failure why;
    return card->free(pointer, why) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult allocate_async(const Call<CUresult(CUdeviceptr*, size_t, CUstream)>& call,
                        CUdeviceptr* pointer, size_t bytes, CUstream stream) {
    // The driver says what is wrong with the arguments.
    if (Program::get().forked() || pointer == nullptr || bytes == 0) {
        return call(pointer, bytes, stream);
    }
    StreamOrdered& memory = StreamOrdered::get();
    const StreamOrdered::Place place = memory.place_of(call, stream);
    const ProgramPoolRef from =
        place.engine != nullptr ? memory.current_pool(place.card->device()) : nullptr;
    if (is_served(place, from)) return memory.allocate(place, from, bytes, pointer);
    return given_by_driver(call(pointer, bytes, stream), place, pointer, bytes);
}

CUresult allocate_from_pool(
    const Call<CUresult(CUdeviceptr*, size_t, CUmemoryPool, CUstream)>& call, CUdeviceptr* pointer,
    size_t bytes, CUmemoryPool pool, CUstream stream) {
    if (Program::get().forked() || pointer == nullptr || bytes == 0) {
        return call(pointer, bytes, pool, stream);
    }
    StreamOrdered& memory = StreamOrdered::get();
    const StreamOrdered::Place place = memory.place_of(call, stream);
    const ProgramPoolRef from = memory.pool(pool);
    if (is_served(place, from)) return memory.allocate(place, from, bytes, pointer);
    return given_by_driver(call(pointer, bytes, pool, stream), place, pointer, bytes);
}

CUresult free_async(const Call<CUresult(CUdeviceptr, CUstream)>& call, CUdeviceptr pointer,
                    CUstream stream) {
    if (Program::get().forked()) return call(pointer, stream);
    StreamOrdered& memory = StreamOrdered::get();
    if (const auto block = memory.find(pointer)) {
        const StreamOrdered::Place place = memory.place_of(call, stream);
        // A capture frees what it has allocated, and nothing else; the driver says so, and what is
        // wrong with a stream too.
        if (place.card != nullptr && !place.captured) {
            StreamRef at = place.stream;
            // A stream of another context: what it has done with the block is over before the
            // block is free.
            if (place.engine == nullptr || place.card->device() != block->device) {
                if (Program::get().call().cuStreamSynchronize(at.handle) != CUDA_SUCCESS) {
                    return CUDA_ERROR_UNKNOWN;
                }
                at = legacy_stream();
            }
            if (const auto result = memory.free(pointer, at)) return *result;
        }
    } else if (const auto result = free_plain(call, pointer, stream)) {
        return *result;
    }
    const CUresult result = call(pointer, stream);
    if (result == CUDA_SUCCESS) Unswappable::get().forget(pointer);
    return result;
}

CUresult create_pool(const Call<CUresult(CUmemoryPool*, const CUmemPoolProps*)>& call,
                     CUmemoryPool* pool, const CUmemPoolProps* properties) {
    const CUresult result = call(pool, properties);
    if (result == CUDA_SUCCESS && !Program::get().forked()) {
        StreamOrdered::get().pool_made(*pool, *properties);
    }
    return result;
}

CUresult destroy_pool(const Call<CUresult(CUmemoryPool)>& call, CUmemoryPool pool) {
    const CUresult result = call(pool);
    if (result == CUDA_SUCCESS && !Program::get().forked()) {
        StreamOrdered::get().pool_destroyed(pool);
    }
    return result;
}

CUresult trim_pool(const Call<CUresult(CUmemoryPool, size_t)>& call, CUmemoryPool pool,
                   size_t bytes) {
    const CUresult result = call(pool, bytes);
    const ProgramPoolRef known = result == CUDA_SUCCESS ? own_pool(pool) : nullptr;
    if (known != nullptr) StreamOrdered::get().trim(*known, bytes);
    return result;
}

CUresult set_pool_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call,
                            CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    const CUresult result = call(pool, attribute, value);
    const ProgramPoolRef known = result == CUDA_SUCCESS ? own_pool(pool) : nullptr;
    if (known == nullptr) return result;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        StreamOrdered::get().keep(*known, *static_cast<const cuuint64_t*>(value));
    } else {
        StreamOrdered::get().reset_high(*known, attribute);
    }
    return result;
}

CUresult get_pool_attribute(const Call<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& call,
                            CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    const CUresult result = call(pool, attribute, value);
    const ProgramPoolRef known = result == CUDA_SUCCESS ? own_pool(pool) : nullptr;
    if (known == nullptr) return result;
    const StreamOrdered::Bytes bytes = StreamOrdered::get().bytes_of(*known);
    // What the driver serves of the same pool counts too.
    auto& answer = *static_cast<cuuint64_t*>(value);
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) answer += bytes.used;
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) answer += bytes.used_high;
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) answer += bytes.reserved;
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) answer += bytes.reserved_high;
    return result;
}

// Memory that other devices may use stays where they can reach it: on the card, by the driver.
CUresult set_pool_access(const Call<CUresult(CUmemoryPool, const CUmemAccessDesc*, size_t)>& call,
                         CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
    const CUresult result = call(pool, access, count);
    const ProgramPoolRef known = result == CUDA_SUCCESS ? own_pool(pool) : nullptr;
    if (known == nullptr) return result;
    for (std::size_t index = 0; index < count; ++index) {
        const CUmemAccessDesc& given = access[index];
        if (given.location.id == known->device || given.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
            continue;
        }
        if (known->ours.exchange(false)) {
            log("cuMemPoolSetAccess: new memory of a pool that other devices use stays on the "
                "card; they cannot reach what was allocated before");
        }
    }
    return result;
}

CUresult set_device_pool(const Call<CUresult(CUdevice, CUmemoryPool)>& call, CUdevice device,
                         CUmemoryPool pool) {
    const CUresult result = call(device, pool);
    if (result == CUDA_SUCCESS && !Program::get().forked()) {
        StreamOrdered::get().pool_chosen(device, pool);
    }
    return result;
}

CUresult set_location_pool(
    const Call<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>& call,
    CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
    const CUresult result = call(location, type, pool);
    if (result == CUDA_SUCCESS && !Program::get().forked() &&
        location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED) {
        StreamOrdered::get().pool_chosen(location->id, pool);
    }
    return result;
}

void after_wait() {
    if (!Program::get().forked()) StreamOrdered::get().after_wait();
}

}  // namespace vramkit::share::hooks
