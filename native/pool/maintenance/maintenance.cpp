// What the pool does with time: by its background thread, or by step().
#include <algorithm>
#include <chrono>

#include "base/scopes.h"
#include "pool/pool.h"

namespace vramkit::pool {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSoon = 2 * kMillisecond;
constexpr std::int64_t kSeldom = 60'000 * kMillisecond;
constexpr std::size_t kOldMappings = 64;  // unmapped in one step, at about 20 us each

}  // namespace

// The driver's clock where it has one: simulated time passes in its own way.
std::int64_t Pool::now() const {
    if (driver_clock_ != nullptr) return static_cast<std::int64_t>(driver_clock_());
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

bool Pool::step() {
    free_ended_direct();
    const std::lock_guard guard(lock_);
    if (closed()) return false;
    const SlowPathScope scope(call_, context_);
    const std::int64_t time = now();
    drop_ended();
    release_held(false);
    if (config_.decay_ms > 0 && time >= next_decay_) {
        decay();
        next_decay_ = time + static_cast<std::int64_t>(config_.decay_ms) * kMillisecond / 2;
    }
    const bool awaited = collect_leaving();
    if (config_.decay_ms > 0) {
        release_idle(time - static_cast<std::int64_t>(config_.decay_ms) * kMillisecond / 2);
    }
    if (time >= next_defrag_) {
        look_at_sizes();
        if (config_.enable_defrag && fragmentation_rate(free_memory()) > config_.defrag_threshold) {
            Failure why;
            free_segments(true);
            slow_.remapped_bytes += extents_->join(why);
        }
        next_defrag_ = time + static_cast<std::int64_t>(config_.defrag_interval_ms) * kMillisecond;
    }
    map_ahead();
    return !extents_->unmap_old(kOldMappings) || awaited;
}

// What nobody needed since the last look, half a decay time ago: from caches to stream caches, and
// from there as soon as its work is done.
void Pool::decay() {
    for (const auto& cache : caches_) {
        if (cache->stream_cache == nullptr) continue;
        StreamCache& stream_cache = *cache->stream_cache;
        const std::lock_guard guard(stream_cache.lock);
        if (stream_cache.ended) continue;
        const ThreadCache::Visited visited(*cache);
        for (ClassIndex index = 0; index < kClasses; ++index) {
            ThreadCache::Bin& bin = cache->bins[index];
            const std::uint32_t unneeded = bin.unneeded();
            cache->bytes -= stream_cache.put(index, {bin.blocks.data(), unneeded});
            stream_cache.bins[index].unneeded += unneeded;
            bin.drop_oldest(unneeded);
            bin.note_look();
        }
        cache->spilled = 0;
    }
    for (const auto& stream_cache : stream_caches_) {
        const std::lock_guard guard(stream_cache->lock);
        bool any = false;
        for (StreamCache::Bin& bin : stream_cache->bins) {
            // The oldest go, though those of the caches came last: only their number matters.
            bin.leaving =
                std::min(bin.blocks.size(), std::max(bin.leaving, bin.low) + bin.unneeded);
            bin.unneeded = 0;
            bin.low = bin.blocks.size();
            any |= bin.leaving > 0;
        }
        if (any) stream_cache->record_fence();
    }
}

// True: some wait for their fences.
bool Pool::collect_leaving() {
    bool awaited = false;
    for (const auto& each : stream_caches_) {
        StreamCache& stream_cache = *each;
        const std::lock_guard guard(stream_cache.lock);
        const auto leaves = [](const StreamCache::Bin& bin) { return bin.leaving > 0; };
        if (std::none_of(stream_cache.bins.begin(), stream_cache.bins.end(), leaves)) continue;
        stream_cache.fences.ask();
        for (ClassIndex index = 0; index < kClasses; ++index) {
            if (!leaves(stream_cache.bins[index])) continue;
            collect(stream_cache, index, stream_cache.bins[index].leaving);
            awaited |= leaves(stream_cache.bins[index]) && stream_cache.can_record_fence();
        }
    }
    return awaited;
}

// The largest class asked for in the interval that ends now.
void Pool::look_at_sizes() {
    largest_before_ = largest_;
    largest_ = 0;
    const AllVisited visited(caches_);
    for (const auto& cache : caches_) {
        largest_before_ = std::max(largest_before_, cache->largest);
        cache->largest = 0;
    }
}

// The thread that needs the next segment shall find it mapped.
void Pool::want_segment() {
    if (segment_wanted_ || has_segment_ahead()) return;
    segment_wanted_ = true;
    if (config_.background) background_thread_.wake();
}

// Half of one is enough: whoever makes only a few blocks needs no other, and is not disturbed.
bool Pool::has_segment_ahead() const {
    // What is much longer than a segment need not become one.
    const std::uint64_t bytes = next_segment_bytes();
    return extents_->idle_smaller_than(2 * bytes + 1) + slabs_->free_span_bytes() >= bytes / 2;
}

void Pool::map_ahead() {
    if (!segment_wanted_) return;
    segment_wanted_ = !has_segment_ahead();
    const std::uint64_t bytes = next_segment_bytes();
    size_t free = 0, total = 0;
    if (!segment_wanted_ || bytes > may_grow()) return;
    if (call_.cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) return;
    // Not the last of the card: others live there too.
    if (free < total / 16) return;
    Failure why;
    if (const std::optional<Extent> extent = extents_->create(bytes, why)) {
        segment_wanted_ = false;
        note_growth();
        extents_->give(*extent, now());
    }
}

std::uint64_t Pool::defragment(Failure& why) {
    const std::lock_guard guard(lock_);
    if (closed()) {
        why = Failure::closed("the pool");
        return 0;
    }
    const SlowPathScope scope(call_, context_);
    reclaim_caches();
    collect_all(Wait::no);
    free_segments(true);
    const std::uint64_t moved = extents_->join(why);
    slow_.remapped_bytes += moved;
    extents_->unmap_old(~std::size_t{0});
    return moved;
}

// Of the background thread: one step, and the time until the next.
std::int64_t Pool::maintain() {
    if (forked()) return kSeldom;
    if (step()) return kSoon;
    const std::lock_guard guard(lock_);
    if (closed()) return kSeldom;
    std::uint64_t pause = config_.defrag_interval_ms;
    if (config_.decay_ms > 0) pause = std::min(pause, config_.decay_ms / 2);
    return std::clamp(static_cast<std::int64_t>(pause) * kMillisecond, kSoon, kSeldom);
}

}  // namespace vramkit::pool
