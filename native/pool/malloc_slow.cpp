// Where memory comes from when neither the thread cache nor the stream cache has a block.
#include <algorithm>

#include "base/rules.h"
#include "pool/pool.h"
#include "pool/report/explain.h"
#include "pool/threads/threads.h"

namespace vramkit::pool {
namespace {

// Other streams whose oldest fence is polled before memory is taken from the driver. A poll costs
// as much as the rest of the path, and the oldest fence is the likeliest to have passed.
constexpr int kQuestions = 1;
// On the host for all streams, before a request fails.
constexpr int kWaits = 3;

}  // namespace

bool Pool::is_open(Failure& why) const {
    if (forked()) {
        why = Failure::forked("the pool");
    } else if (closed()) {
        why = Failure::closed("the pool");
    } else {
        return true;
    }
    return false;
}

std::string Pool::explain(std::uint64_t bytes, const Failure& cause) const {
    return explain_shortage(parts_, bytes, cause, maintenance_.largest_asked_for());
}

// With the pool's lock.
std::optional<std::uint32_t> Pool::number_of(const StreamRef& stream, Failure& why) {
    if (!is_open(why)) return {};
    parts_.reuse_numbers();
    return parts_.streams.number_of(stream, why);
}

// A stream that is used after its end was announced counts as a new stream from then on.
ThreadCache* Pool::cache_of(const StreamRef& stream, Failure& why) {
    ThreadCache* const cache = find_cache(id_, stream);
    if (cache != nullptr && !cache->has_ended()) return cache;
    const std::lock_guard guard(lock_);
    const std::optional<std::uint32_t> number = number_of(stream, why);
    if (!number) return nullptr;
    if (cache != nullptr) {
        const SlowPathScope scope = parts_.card.enter();
        parts_.threads.retire_ended();
    }
    return &parts_.threads.of(*number);
}

// From the stream's own free blocks, without a wait. Takes the stream cache's lock.
BlockRef Pool::split_or_join(const ThreadCache& cache, ClassIndex index, std::uint64_t cut_up_to) {
    if (cache.stream_cache == nullptr || !is_large(index)) return {};
    // An NVTX tool was told that the graph uses its blocks as they are.
    if (nvtx_ != nullptr && is_capture(cache.number)) return {};
    return parts_.memory.split_or_join(*cache.stream_cache, index, cut_up_to);
}

BlockRef Pool::malloc_slow(ThreadCache& cache, ClassIndex index, std::uint64_t bytes, bool may_wait,
                           Failure& why) {
    std::unique_lock guard(lock_);
    if (!is_open(why)) return {};
    const SlowPathScope scope = parts_.card.enter();
    DeviceMemory& memory = parts_.memory;
    const std::uint64_t batch = parts_.config.batch_alloc_count;
    // The stream was given to this call, so its handle is valid: record a fence behind its blocks
    // that have none, so that other streams can take them.
    const auto record_fence = [&] {
        if (cache.stream_cache == nullptr || cache.stream.durable || cache.stream.capture != 0) {
            return;
        }
        const std::lock_guard stream_guard(cache.stream_cache->lock);
        if (!cache.stream_cache->ended) cache.stream_cache->record_fence_here();
    };
    record_fence();
    if (parts_.held.release()) {
        const BlockRef own = parts_.threads.refill(cache, index);
        if (own.slab != nullptr) return own;
    }
    BlockRef block;  // the one to hand out
    const auto found = [&](BlockRef one, std::uint64_t Stats::* counter) {
        block = one;
        if (block.slab == nullptr) return false;
        ++(parts_.counters.*counter);
        return true;
    };
    const auto served = [&] {
        maintenance_.notice();
        return block;
    };
    if (found(take_idle(cache, index), &Stats::idle_hits)) return served();
    if (found(take_of_others(cache, index), &Stats::cross_stream_hits)) return served();
    // A request that can never be served fails here, before caches are emptied for it.
    if (bytes > memory.most_bytes()) {
        why = Failure::out_of_memory();
        why.message = explain(bytes, why);
        return {};
    }
    if (found(fill_cache(cache, index, memory.grow(index, bytes, batch, why)),
              &Stats::growth_hits)) {
        return served();
    }
    if (why.kind != Failure::Kind::out_of_memory) return {};

    // Memory is short: collect from idle threads, other classes and other streams.
    const auto gather = [&] {
        parts_.threads.drain_all();  // before the fence, so that what it drains is behind it
        record_fence();
        parts_.collect();
        return found(take_idle(cache, index), &Stats::idle_hits) ||
               found(fill_cache(cache, index, memory.put_together(index, bytes, batch, why)),
                     &Stats::remap_hits);
    };
    if (gather()) return served();
    if (cache.stream_cache != nullptr && !is_capture(cache.number) &&
        found(memory.put_together_own(cache.stream_cache, bytes, why), &Stats::remap_hits)) {
        return served();
    }
    // Splitting a handle is better than waiting.
    if (block = split_or_join(cache, index, kLargestRequest); block.slab != nullptr) {
        why = {};
        return served();
    }
    if (may_wait && why.kind == Failure::Kind::out_of_memory) {
        // A block of this class whose work is not done: the stream waits for it, not the host.
        if (found(take_after_gpu_wait(cache, index), &Stats::gpu_wait_hits)) return served();
        // Releases the lock: host functions in the awaited work may free. Others may take what was
        // waited for, hence more than once.
        for (int waits = 0; waits < kWaits && parts_.wait(guard); ++waits) {
            if (!is_open(why)) return {};
            if (gather()) return served();
        }
    }
    maintenance_.notice();
    if (why.kind == Failure::Kind::out_of_memory) why.message = explain(bytes, why);
    return {};
}

// Idle memory. No driver call.
BlockRef Pool::take_idle(ThreadCache& cache, ClassIndex index) {
    return fill_cache(cache, index,
                      parts_.memory.take_idle(index, parts_.config.batch_alloc_count));
}

// Small blocks come in batches: those not handed out now go into the thread cache.
BlockRef Pool::fill_cache(ThreadCache& cache, ClassIndex index, BlockRef first) {
    if (first.slab == nullptr || is_large(index)) return first;
    const ThreadCache::Entered entered(cache);
    for (std::size_t more = cache.ended ? 0 : parts_.threads.room_for(cache, index); more > 0;
         --more) {
        if (!cache.try_to_make_room(index)) break;
        const BlockRef block = parts_.memory.take_more(index);
        if (block.slab == nullptr) break;
        cache.keep(block);
    }
    return first;
}

// A stream that lacks a block of a class soon lacks another: takes up to half of the other stream's
// blocks whose work is done, as far as the thread cache has room.
BlockRef Pool::take_of_others(ThreadCache& cache, ClassIndex index) {
    int questions = kQuestions;
    for (const auto& each : parts_.streams.caches()) {
        if (each == cache.stream_cache) continue;
        StreamCache& stream_cache = *each;
        // Another thread uses it: not worth a wait.
        const std::unique_lock guard(stream_cache.lock, std::try_to_lock);
        if (!guard || stream_cache.bins[index].blocks.empty()) continue;
        const Fences::Number oldest = stream_cache.bins[index].blocks.front().fence;
        if (!stream_cache.fences.has_passed(oldest) && questions > 0) {
            --questions;
            if (!stream_cache.fences.is_recorded(oldest)) stream_cache.record_fence();
            stream_cache.fences.poll();
        }
        const ThreadCache::Entered entered(cache);
        const std::size_t held = stream_cache.bins[index].blocks.size();
        std::size_t more = std::min((held - 1) / 2, parts_.threads.room_for(cache, index));
        if (is_large(index) || cache.ended || !cache.try_to_make_room(index, more)) more = 0;
        std::vector<BlockRef> blocks;
        blocks.reserve(1 + more);
        if (is_broken(Rule::fence_has_passed)) {
            blocks.push_back(stream_cache.take_newest(index));
        } else {
            stream_cache.take_passed(index, 1 + more, blocks);
        }
        if (blocks.empty()) continue;
        for (; blocks.size() > 1; blocks.pop_back()) cache.keep(blocks.back());
        return blocks.front();
    }
    return {};
}

BlockRef Pool::take_after_gpu_wait(const ThreadCache& cache, ClassIndex index) {
    if (cache.stream_cache == nullptr || cache.stream.capture != 0) return {};
    // During a capture on a blocking stream, a wait on the legacy stream would break the capture.
    const CUstream waits = cache.stream.handle;
    if (is_legacy(waits) && is_captured(parts_.card.call, waits)) return {};
    for (const auto& each : parts_.streams.caches()) {
        if (each == cache.stream_cache) continue;
        StreamCache& stream_cache = *each;
        const std::lock_guard guard(stream_cache.lock);
        // The oldest block is ready first.
        const BlockRef block = stream_cache.take_oldest(index, waits);
        if (block.slab != nullptr) return block;
    }
    return {};
}

// Straight from the driver (direct_blocks.h).
std::uint64_t Pool::malloc_direct(ThreadCache& cache, std::uint64_t bytes, bool may_wait,
                                  Failure& why) {
    std::unique_lock guard(lock_);
    if (!is_open(why)) return 0;
    const SlowPathScope scope = parts_.card.enter();
    std::uint64_t address = parts_.direct.allocate(bytes, cache.number, why);
    if (address == 0 && why.kind == Failure::Kind::out_of_memory) {
        if (may_wait) {
            parts_.threads.drain_all();
            parts_.wait(guard);
            parts_.direct.free_ended(guard);
            if (!is_open(why)) return 0;
        }
        parts_.collect();
        parts_.memory.release_idle(Extents::kAnyTime);
        why = {};
        address = parts_.direct.allocate(bytes, cache.number, why);
    }
    if (address == 0) {
        if (why.kind == Failure::Kind::out_of_memory) why.message = explain(bytes, why);
        return 0;
    }
    ++parts_.counters.direct_hits;
    guard.unlock();
    cache.lock.enter();
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.allocations;
        cache.counters.allocated_bytes += bytes;
    }
    cache.live += static_cast<std::int64_t>(bytes);
    const bool counted = parts_.threads.usage.rise(cache);
    cache.lock.leave();
    if (!counted) parts_.threads.usage.claim(cache);
    return address;
}

}  // namespace vramkit::pool
