// The hot paths: no lock, no driver call.
#include "pool/pool.h"
#include "base/rules.h"

#include <algorithm>

#include "pool/threads/threads.h"

namespace vramkit::pool {
std::uint64_t Pool::malloc_cached(std::uint64_t bytes, const StreamRef& stream) {
    if (bytes - 1 >= kLargestRequest || forked()) return 0;
    ThreadCache* const cache = find_cache(id_, stream);
    if (cache == nullptr) return 0;
    const ClassIndex index = class_map_.load(std::memory_order_acquire)->of(bytes);
    cache->lock.enter();
    ThreadCache::Bin& bin = cache->bins[index];
    if (bin.blocks.empty()) {
        cache->lock.leave();
        return 0;
    }
    const BlockRef block = bin.blocks.back();
    bin.blocks.pop_back();
    if (bin.size() < bin.low) bin.low = bin.size();
    cache->bytes -= block.bytes();
    ++cache->counters.hits;
    const std::uint64_t address = hand_out(*cache, block, bytes);
    const bool counted = parts_.threads.usage.rise(*cache);
    cache->lock.leave();
    if (!counted) parts_.threads.usage.claim(*cache);
    if (nvtx_ != nullptr) tell_tool_of_use(*cache, block, bytes);
    return address;
}

// With the cache's biased lock.
std::uint64_t Pool::hand_out(ThreadCache& cache, BlockRef block, std::uint64_t bytes) {
    const std::uint64_t address = block.address();
    const bool large = block.slab->large;
    if (large) block.slab->asked = bytes;
    block.block().set(State::live, cache.number, large ? 0 : static_cast<std::uint32_t>(bytes));
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.allocations;
        cache.counters.allocated_bytes += bytes;
    }
    cache.live += static_cast<std::int64_t>(bytes);
    if (bytes > cache.largest) cache.largest = bytes;
    if (checked_) parts_.card.checker.block_allocated(address, bytes, cache.stream.handle);
    return address;
}

Pool::Freed Pool::free_cached(std::uint64_t address, std::uint64_t given, const StreamRef* stream,
                              Full& full) {
    return free_here<false>(address, given, stream, full);
}

// may_lock: a large block may take the lock of its stream cache.
template <bool may_lock>
Pool::Freed Pool::free_here(std::uint64_t address, std::uint64_t given, const StreamRef* stream,
                            Full& full) {
    if (forked()) return Freed::slow;
    Slab* const slab = page_map_->slab_of(address);
    if (slab == nullptr) return Freed::slow;
    const std::uint64_t inside = address - slab->address;
    const std::uint64_t number = slab->number_at(inside);
    if (number >= slab->count || number * slab->block_bytes != inside) return Freed::slow;
    const BlockRef ref{slab, static_cast<std::uint32_t>(number)};
    Block& block = ref.block();
    if (block.state() != State::live) return Freed::slow;
    const std::uint64_t bytes = slab->asked_for(block);
    if (given != 0 && given != bytes) return Freed::slow;
    // No stream given: that of the allocation, for which this thread usually has a cache.
    const std::uint32_t owner = block.stream();
    ThreadCache* const cache = stream != nullptr && !is_broken(Rule::given_stream_counts)
                                   ? find_cache(id_, *stream)
                                   : find_cache_by_number(id_, owner);
    // With captures involved, HeldBlocks::plan() decides.
    if (cache == nullptr || (is_capture(owner) && stream == nullptr)) return Freed::slow;
    if (owner != cache->number && (is_capture(owner) || is_capture(cache->number)) &&
        !is_broken(Rule::graph_keeps_its_block)) {
        return Freed::slow;
    }
    if (nvtx_ != nullptr) tell_tool_of_end(*cache, ref);
    if (may_lock && slab->large &&
        slab->index >= cache->first_large.load(std::memory_order_relaxed) &&
        free_large(*cache, ref, bytes, stream != nullptr)) {
        return Freed::yes;
    }
    {
        const ThreadCache::Entered entered(*cache);
        // The end of the stream was announced, but it is still used.
        if (stream != nullptr && cache->ended) [[unlikely]]
            return Freed::slow;
        cache->make_room(slab->index);
        if (!block.take_from_user()) return Freed::slow;
        take_back(*cache, ref, bytes);
        if (cache->is_over_bounds(slab->index)) full = {cache, slab->index, stream != nullptr};
    }
    return Freed::yes;
}

// A range that thread caches do not keep, straight to the stream cache under one lock. False:
// nothing was done, because the stream has ended or the block is not in use.
bool Pool::free_large(ThreadCache& cache, BlockRef block, std::uint64_t bytes, bool given) {
    if (cache.stream_cache == nullptr) return false;
    StreamCache& stream_cache = *cache.stream_cache;
    const std::lock_guard guard(stream_cache.lock);
    {
        const ThreadCache::Entered entered(cache);
        if (cache.ended || !block.block().take_from_user()) return false;
        if (checked_) tell_checker_of_free(cache, block.address(), bytes);
        count_free(cache, bytes);
    }
    stream_cache.put_range(*block.slab);
    stream_cache.spilled_by = &cache;
    if (given) record_fence_if_due(cache);
    return true;
}

// With the biased lock, of a block that was just taken from its user.
void Pool::take_back(ThreadCache& cache, BlockRef block, std::uint64_t bytes) {
    if (checked_) tell_checker_of_free(cache, block.address(), bytes);
    cache.push(block);
    count_free(cache, bytes);
}

void Pool::count_free(ThreadCache& cache, std::uint64_t bytes) {
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.frees;
        cache.counters.freed_bytes += bytes;
    }
    cache.live -= static_cast<std::int64_t>(bytes);
    parts_.threads.usage.fall(cache);
}

// Not for a stream that has ended, nor for another thread's default stream: their handles mean
// another stream here. A block that goes back to a capture is not free: its graph uses it at every
// launch.
void Pool::tell_checker_of_free(const ThreadCache& cache, std::uint64_t address,
                                std::uint64_t bytes, bool held) {
    if (cache.ended || cache.stream.capture != 0) return;
    if (cache.stream.handle == VRAMKIT_STREAM_PER_THREAD) {
        unsigned long long id = 0;
        if (parts_.card.call.cuStreamGetId(cache.stream.handle, &id) != CUDA_SUCCESS ||
            id != cache.stream.id) {
            return;
        }
    }
    const Checker& checker = parts_.card.checker;
    if (held) {
        checker.block_held(address, bytes, cache.stream.handle);
    } else {
        checker.block_freed(address, bytes, cache.stream.handle);
    }
}

// A graph may reuse a block for several purposes, and all of its bytes: report the whole block.
void Pool::tell_tool_of_use(const ThreadCache& cache, BlockRef block, std::uint64_t bytes) {
    nvtx_->add_block(block.address(), is_capture(cache.number) ? block.bytes() : bytes);
}

// A block that goes back to a capture stays in use by its graph until it becomes idle.
void Pool::tell_tool_of_end(const ThreadCache& cache, BlockRef block) {
    if (!is_capture(cache.number)) nvtx_->remove_block(block.address(), block.bytes());
}

std::uint64_t Pool::malloc(std::uint64_t bytes, const StreamRef& stream, bool may_wait,
                           Failure& why) {
    if (const std::uint64_t address = malloc_cached(bytes, stream); address != 0) return address;
    if (bytes == 0 || bytes > kLargestRequest) {
        why = Failure::bad_value("a block has 1 to " + std::to_string(kLargestRequest) +
                                 " bytes; asked for were " + std::to_string(bytes));
        return 0;
    }
    if (!is_open(why)) return 0;
    ThreadCache* const cache = cache_of(stream, why);
    if (cache == nullptr) return 0;
    if (bytes > kLargestPowerOfTwoClass && direct_on_.load(std::memory_order_relaxed) &&
        stream.capture == 0) {
        return malloc_direct(*cache, bytes, may_wait, why);
    }
    const ClassMap& classes = *class_map_.load(std::memory_order_acquire);
    const ClassIndex index = classes.of(bytes);
    const Request request{index, classes.block_bytes(index, bytes), bytes};
    BlockRef block = parts_.threads.refill(*cache, index, request.bytes);
    if (block.slab == nullptr) block = malloc_slow(*cache, request, may_wait, why);
    if (block.slab == nullptr) return 0;
    cache->lock.enter();
    const std::uint64_t address = hand_out(*cache, block, bytes);
    const bool counted = parts_.threads.usage.rise(*cache);
    cache->lock.leave();
    if (!counted) parts_.threads.usage.claim(*cache);
    if (nvtx_ != nullptr) tell_tool_of_use(*cache, block, bytes);
    return address;
}

bool Pool::free(std::uint64_t address, std::optional<std::uint64_t> bytes,
                const std::optional<StreamRef>& stream, Failure& why) {
    Full full;
    const StreamRef* const given = stream ? &*stream : nullptr;
    if (free_here<true>(address, bytes.value_or(0), given, full) == Freed::slow) {
        BlockRef block;
        const std::uint64_t held = find_live(address, bytes, block, why);
        if (held == 0) return false;
        if (block.slab == nullptr) return free_direct(address, stream, why);
        if (!free_slowly(block, held, stream, full, why)) return false;
    }
    if (full.cache != nullptr) spill(full);
    return true;
}

// With the lock of the stream cache, in a call that its stream was given to. A stream that may be
// destroyed without notice gets a fence while it certainly lives: once for every cache size of
// freed bytes. For other streams the fence is recorded when it is needed: they reuse their own
// blocks without one.
void Pool::record_fence_if_due(ThreadCache& cache) {
    StreamCache& stream_cache = *cache.stream_cache;
    if (stream_cache.stream.durable || stream_cache.stream.capture != 0) return;
    if (stream_cache.bytes_since_fence < cache.most_bytes.load(std::memory_order_relaxed)) return;
    const SlowPathScope scope = parts_.card.enter();
    stream_cache.record_fence_here();
}

void Pool::spill(const Full& full) {
    ThreadCache& cache = *full.cache;
    bool ended = true, many = false;
    if (cache.stream_cache != nullptr) {
        StreamCache& stream_cache = *cache.stream_cache;
        const std::lock_guard guard(stream_cache.lock);
        ended = stream_cache.ended;
        if (!ended) many = parts_.threads.evict_excess(cache, full.index);
        if (!ended && full.given) record_fence_if_due(cache);
    }
    if (!ended && !many) return;
    const std::lock_guard guard(lock_);
    if (parts_.card.forgotten) return;
    const SlowPathScope scope = parts_.card.enter();
    if (ended) {
        parts_.threads.drain(cache);
        parts_.threads.drop_ended();
        return;
    }
    StreamCache& stream_cache = *cache.stream_cache;
    const std::lock_guard stream_guard(stream_cache.lock);
    stream_cache.record_fence();
    stream_cache.fences.poll();
    const std::size_t most = parts_.threads.most_in_stream_cache();
    for (ClassIndex index = 0; index < kFirstRange; ++index) {
        const std::size_t held = stream_cache.bins[index].blocks.size();
        if (held > most) parts_.streams.collect(stream_cache, index, held - most);
    }
}

}  // namespace vramkit::pool
