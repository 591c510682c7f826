// Large blocks straight from the driver and back.
#include <algorithm>

#include "base/scopes.h"
#include "pool/pool.h"

namespace vramkit::pool {

// Straight from the driver.
std::uint64_t Pool::malloc_direct(ThreadCache& cache, std::uint64_t bytes, bool may_wait,
                                  Failure& why) {
    const SlowPathScope scope(call_, context_);
    CUdeviceptr address = 0;
    {
        std::unique_lock guard(lock_);
        if (closed()) {
            why = Failure::closed("the pool");
            return 0;
        }
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
        if (bytes <= may_grow()) result = call_.cuMemAlloc_v2(&address, bytes);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            reclaim_caches();
            collect_all(may_wait ? Wait::for_streams : Wait::no);
            free_segments(true);
            release_idle(Extents::kAnyTime);
            if (may_wait) {
                guard.unlock();
                free_ended_direct();
                guard.lock();
            }
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
    cache.lock.enter();
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.allocations;
        cache.counters.allocated_bytes += bytes;
    }
    cache.live += static_cast<std::int64_t>(bytes);
    const bool counted = usage_.rise(cache);
    cache.lock.leave();
    if (!counted) usage_.claim(cache);
    return address;
}

// The block is used on this stream too. What goes back by cuMemFree waits for all streams, but not
// for what a graph does later.
bool Pool::note_graph(DirectBlock& block, const StreamRef& stream, Failure& why) {
    if (stream.capture == 0) return true;
    const std::optional<std::uint32_t> number = number_of(stream, why);
    if (number) block.graphs.push_back(known(*number).graph);
    return number.has_value();
}

// The driver waits for all work of the card: not with the lock.
bool Pool::free_direct(std::uint64_t address, const std::optional<StreamRef>& stream,
                       Failure& why) {
    ThreadCache* cache = nullptr;
    Direct::Taken taken;
    std::uint64_t bytes = 0;
    {
        const std::lock_guard guard(lock_);
        DirectBlock* const block = direct_.find(address);
        if (block == nullptr) {
            why = Failure::bad_value("the block is not in use: freed twice?");
            return false;
        }
        if (stream && !note_graph(*block, *stream, why)) return false;
        cache = &cache_of_number(block->stream);
        bytes = block->bytes;
        block->freed = block->is_of_graph();
        if (!block->freed) taken = direct_.take(address);
    }
    if (taken && !return_direct(taken, why)) return false;
    cache->lock.enter();
    count_free(*cache, bytes);
    cache->lock.leave();
    return true;
}

// To the driver. Where that refuses it is as before.
bool Pool::return_direct(Direct::Taken& taken, Failure& why) {
    const SlowPathScope scope(call_, context_);
    if (!failed(call_.cuMemFree_v2(taken.key()), "cuMemFree_v2", why)) return true;
    const std::lock_guard guard(lock_);
    direct_.put_back(std::move(taken));
    return false;
}

std::uint64_t Pool::free_ended_direct() {
    std::uint64_t bytes = 0;
    for (;;) {
        Direct::Taken taken;
        {
            const std::lock_guard guard(lock_);
            taken = direct_.take_ended();
        }
        Failure why;
        if (!taken || !return_direct(taken, why)) return bytes;
        bytes += taken.mapped().bytes;
    }
}

}  // namespace vramkit::pool
