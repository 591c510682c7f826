// Large blocks straight from the driver and back.
#include <algorithm>

#include "pool/pool.h"
#include "pool/scopes.h"

namespace vramkit::pool {

// Straight from the driver.
std::uint64_t Pool::malloc_direct(Cache& cache, std::uint64_t bytes, bool may_wait, Failure& why) {
    const SlowPathScope scope(call_, context_);
    CUdeviceptr address = 0;
    {
        const std::lock_guard guard(lock_);
        if (closed()) {
            why = Failure::closed();
            return 0;
        }
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
        if (bytes <= may_grow()) result = call_.cuMemAlloc_v2(&address, bytes);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            reclaim_caches();
            collect_all(may_wait ? Wait::for_streams : Wait::no);
            free_segments(true);
            release_idle(Extents::kAnyTime);
            if (bytes <= may_grow()) result = call_.cuMemAlloc_v2(&address, bytes);
        }
        if (result != CUDA_SUCCESS) {
            why = Failure::of_driver(result, "cuMemAlloc_v2");
            if (why.kind == Failure::Kind::out_of_memory) why.message = explain(bytes, why);
            return 0;
        }
        direct_.add(address, {bytes, cache.number});
        peak_reserved_ = std::max(peak_reserved_, extents_->mapped() + direct_.bytes());
        ++slow_.direct_hits;
    }
    cache.word.enter();
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.allocations;
        cache.counters.allocated_bytes += bytes;
    }
    cache.live += static_cast<std::int64_t>(bytes);
    const bool counted = usage_.rise(cache);
    cache.word.leave();
    if (!counted) usage_.claim(cache);
    return address;
}

// The driver waits for all work of the card: not with the lock.
bool Pool::free_direct(std::uint64_t address, Failure& why) {
    DirectBlock block;
    Cache* cache = nullptr;
    {
        const std::lock_guard guard(lock_);
        const DirectBlock* const found = direct_.find(address);
        if (found == nullptr) {
            why = Failure::bad_value("the block is not in use: freed twice?");
            return false;
        }
        cache = &cache_of_number(found->stream);
        block = *found;
        direct_.remove(address);
    }
    const SlowPathScope scope(call_, context_);
    const CUresult result = call_.cuMemFree_v2(address);
    if (result != CUDA_SUCCESS) {
        const std::lock_guard guard(lock_);
        direct_.add(address, block);
        why = Failure::of_driver(result, "cuMemFree_v2");
        return false;
    }
    cache->word.enter();
    count_free(*cache, block.bytes);
    cache->word.leave();
    return true;
}

}  // namespace vramkit::pool
