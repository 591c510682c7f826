// Where memory comes from when neither cache nor stream cache has it.
#include <algorithm>

#include "base/rules.h"
#include "base/scopes.h"
#include "pool/pool.h"

namespace vramkit::pool {
namespace {

// Other streams' blocks, looked at before memory is taken from the driver. Each question costs as
// much as the rest of the path, and the oldest fence is the likeliest to have passed.
constexpr int kQuestions = 1;

}  // namespace

BlockRef Pool::malloc_slow(ThreadCache& cache, ClassIndex index, std::uint64_t bytes, bool may_wait,
                           Failure& why) {
    const std::lock_guard guard(lock_);
    if (closed()) {
        why = Failure::closed("the pool");
        return {};
    }
    const SlowPathScope scope(call_, context_);
    record_fence_while_given(cache);
    if (release_held(false)) {
        const BlockRef own = take_from_stream_cache(cache, index);
        if (own.slab != nullptr) return own;
    }
    // For the one that is handed out, while it is nobody's.
    BlockRef block;
    const auto found = [&](BlockRef one, std::uint64_t Stats::* counter) {
        block = one;
        if (block.slab == nullptr) return false;
        ++(slow_.*counter);
        return true;
    };
    if (found(take_idle(cache, index), &Stats::idle_hits)) return block;
    if (found(take_of_others(cache, index), &Stats::cross_stream_hits)) return block;
    // What can never be served costs the others nothing: no cache is emptied for it.
    if (bytes > most_bytes_) {
        why = Failure::out_of_memory();
        why.message = explain(bytes, why);
        return {};
    }
    if (found(grow(cache, index, bytes, why), &Stats::growth_hits)) return block;
    if (why.kind != Failure::Kind::out_of_memory) return {};

    // Short of memory: what idle threads keep, and memory of other classes and streams.
    const auto gather = [&](Wait wait) {
        reclaim_caches();
        record_fence_while_given(cache);
        collect_all(wait);
        free_segments(true);
        return found(take_idle(cache, index), &Stats::idle_hits) ||
               found(put_together(cache, index, bytes, why), &Stats::remap_hits);
    };
    if (gather(Wait::no)) return block;
    if (found(put_together_own(cache, bytes, why), &Stats::remap_hits)) return block;
    // Rather a handle is cut than somebody waits.
    if (block = split_or_join(cache, index, kLargestRequest); block.slab != nullptr) {
        why = {};
        return block;
    }
    if (may_wait && why.kind == Failure::Kind::out_of_memory) {
        // A block of this class whose work is not done: the stream waits for it, not the host.
        if (found(take_after_gpu_wait(cache, index), &Stats::gpu_wait_hits)) return block;
        if (gather(Wait::for_streams)) return block;
    }
    why.message = explain(bytes, why);
    return {};
}

// The stream was given to this call, so its handle is good: what it has unfenced gets its fence,
// for others to have.
void Pool::record_fence_while_given(ThreadCache& cache) {
    if (cache.stream_cache == nullptr || cache.stream.durable || cache.stream.capture != 0) return;
    const std::lock_guard guard(cache.stream_cache->lock);
    if (!cache.stream_cache->ended) cache.stream_cache->record_fence_here();
}

// Mapped memory that is nobody's. No driver call. Small blocks come in batches: what is not handed
// out now goes into the cache.
BlockRef Pool::take_idle(ThreadCache& cache, ClassIndex index) {
    if (is_large(index)) {
        const std::uint64_t bytes = class_bytes(index);
        const std::optional<Extent> extent =
            extents_->take(bytes, with_excess(bytes), cut_up_to(bytes));
        return extent ? large_->make(*extent) : BlockRef{};
    }
    BlockRef first = slabs_->take(index);
    if (first.slab == nullptr && slabs_->make(index, config_.batch_alloc_count)) {
        first = slabs_->take(index);
        want_segment();
    }
    if (first.slab == nullptr) return {};
    const ThreadCache::Entered entered(cache);
    for (std::size_t more = cache.ended ? 0 : room_for(cache, index); more > 0; --more) {
        if (!cache.try_to_make_room(index)) break;
        const BlockRef block = slabs_->take(index);
        if (block.slab == nullptr) break;
        cache.keep(block);
    }
    return first;
}

void Pool::give_idle(BlockRef block) {
    Slab& slab = *block.slab;
    if (nvtx_ != nullptr) nvtx_->remove_block(block.address(), block.bytes());  // of a graph
    if (!slab.large) {
        if (slabs_->give(block)) free_segments(false);
        return;
    }
    const Extent extent = slab.extent();
    large_->end(slab);
    extents_->give(extent, now());
}

void Pool::free_segments(bool dissolve_idle) {
    for (const Extent& extent : slabs_->take_free_segments(dissolve_idle)) {
        extents_->give(extent, now());
    }
}

// Whoever lacks a block of a class soon lacks another: half of what that stream has done with, as
// far as there is room for it.
BlockRef Pool::take_of_others(ThreadCache& cache, ClassIndex index) {
    int questions = kQuestions;
    for (const auto& each : stream_caches_) {
        if (each == cache.stream_cache) continue;
        StreamCache& stream_cache = *each;
        // Somebody is at it: not worth a wait.
        const std::unique_lock guard(stream_cache.lock, std::try_to_lock);
        if (!guard || stream_cache.bins[index].blocks.empty()) continue;
        const Fences::Number oldest = stream_cache.bins[index].blocks.front().fence;
        if (!stream_cache.fences.has_passed(oldest) && questions > 0) {
            --questions;
            if (!stream_cache.fences.is_recorded(oldest)) stream_cache.record_fence();
            stream_cache.fences.ask();
        }
        const ThreadCache::Entered entered(cache);
        const std::size_t held = stream_cache.bins[index].blocks.size();
        std::size_t more = std::min((held - 1) / 2, room_for(cache, index));
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
    // Beside a capture on a blocking stream, a wait of the legacy stream would break that.
    const CUstream waits = cache.stream.handle;
    if (is_legacy(waits) && is_captured(call_, waits)) return {};
    for (const auto& each : stream_caches_) {
        if (each == cache.stream_cache) continue;
        StreamCache& stream_cache = *each;
        const std::lock_guard guard(stream_cache.lock);
        // The oldest is done first.
        const BlockRef block = stream_cache.take_oldest(index, waits);
        if (block.slab != nullptr) return block;
    }
    return {};
}

}  // namespace vramkit::pool
