// Where memory comes from when neither the thread cache nor the stream cache has a block.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/rules.h"
#include "pool/pool.h"
#include "pool/report/explain.h"
#include "pool/threads/threads.h"

namespace vramkit::pool {
namespace {

// Other streams whose oldest fence is polled for one of their blocks. A poll costs as much as the
// rest of the path, and the oldest fence is the likeliest to have passed.
constexpr int kQuestions = 1;
constexpr std::size_t kOthers = 64;  // looked at for that
// Thread caches that keep more than this part of what the pool holds give up their large blocks
// before memory moves or is taken from the driver.
constexpr std::uint64_t kCachedPart = 1024;
// What it costs to collect from the cache of a stream (an event, a query) and of a thread (a
// barrier).
constexpr std::int64_t kStreamNs = 1'000;
constexpr std::int64_t kThreadNs = 2'000;
// On the host for all streams, before a request fails.
constexpr int kWaits = 3;
// Times that callbacks are asked for memory before a request fails. What they freed may be in the
// wrong places, or gone to other threads, hence more than once; bounded, since a callback may say
// that it freed what it did not.
constexpr int kAsks = 8;
// For so long after threads met here, memory is taken rather than time.
constexpr std::int64_t kHurryNs = 5'000'000;

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

BlockRef Pool::malloc_slow(ThreadCache& cache, const Request& request, bool may_wait,
                           Failure& why) {
    std::optional<Crowd::Member> member(std::in_place, crowd_);
    std::unique_lock guard(lock_);
    if (!is_open(why)) return {};
    const SlowPathScope scope = parts_.card.enter();
    DeviceMemory& memory = parts_.memory;
    if (member->has_company()) hurry_until_ = parts_.card.now() + kHurryNs;
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
    const auto found_own = [&] {
        block = parts_.threads.refill(cache, request.index, request.bytes);  // counts the hit
        return block.slab != nullptr;
    };
    if (parts_.held.release() && found_own()) return served();
    if (found(take_idle(cache, request), &Stats::idle_hits)) return served();
    // To do without new memory takes time, which other threads that wait for the lock would pay for
    // too.
    using Thrift = DeviceMemory::Thrift;
    const auto peak = static_cast<std::uint64_t>(parts_.threads.usage.peak());
    const std::uint64_t cached = parts_.threads.all().size() * parts_.config.cache_bytes;
    const Thrift thrift = memory.holds_too_much(request.bytes, peak, cached) ? Thrift::must
                          : parts_.card.now() < hurry_until_                 ? Thrift::none
                                                                             : Thrift::earned;
    if (thrift != Thrift::none &&
        found(take_of_others(cache, request), &Stats::cross_stream_hits)) {
        return served();
    }
    // A request that can never be served fails here, before caches are emptied for it.
    if (request.asked > memory.most_bytes()) {
        why = Failure::out_of_memory();
        why.message = explain(request.asked, why);
        return {};
    }
    if (found_small(cache, request, block)) return served();
    // All that is free and done with, in the caches of streams.
    const auto gather = [&] {
        record_fence();
        parts_.collect(cache.stream_cache.get());
        if (cache.stream_cache != nullptr && !is_capture(cache.number)) {
            memory.join_idle_to(*cache.stream_cache);
        }
        return found_own() || found(take_idle(cache, request), &Stats::idle_hits) ||
               found_small(cache, request, block);
    };
    // What takes driver calls.
    const auto make = [&](Thrift how) {
        const DeviceMemory::Made made = this->make(cache, request, how, why);
        return found(made.block, made.grown ? &Stats::growth_hits : &Stats::remap_hits);
    };
    const auto pays = [&](std::int64_t ns) {
        return thrift == Thrift::must || (thrift == Thrift::earned && memory.spend(ns));
    };
    const auto streams = static_cast<std::int64_t>(parts_.streams.caches().size());
    if (pays(streams * kStreamNs) && gather()) return served();
    const std::uint64_t few = std::max(kPage, memory.reserved() / kCachedPart);
    const auto threads = static_cast<std::int64_t>(parts_.threads.all().size());
    if (parts_.threads.cached_bytes() > few && pays(threads * kThreadNs + streams * kStreamNs)) {
        parts_.threads.drain_ranges();
        if (gather()) return served();
    }
    if (make(thrift)) return served();
    if (why.kind != Failure::Kind::out_of_memory) return {};
    // Memory is short.
    const auto gather_all = [&] {
        parts_.threads.drain_all();  // before the fence, so that what it drains is behind it
        if (gather() || make(Thrift::must)) return true;
        if (!memory.lacks_addresses(why)) return false;
        // Free memory that lies alone divides them: given back, it can be mapped in one place.
        parts_.collect();
        return memory.release_idle(DeviceMemory::kAnyTime) > 0 && make(Thrift::must);
    };
    if (gather_all()) return served();
    // A block whose work is not done: the stream waits for it, not the host.
    const auto found_after_gpu_wait = [&] {
        return found(take_after_gpu_wait(cache, request), &Stats::gpu_wait_hits);
    };
    for (int asks = 0; may_wait && why.kind == Failure::Kind::out_of_memory; ++asks) {
        if (found_after_gpu_wait()) return served();
        member.reset();  // nobody hurries because of one that waits for work
        const std::uint64_t lacking = asks == 0 ? lacking_bytes(request.bytes) : request.bytes;
        const bool freed = asks < kAsks && ask_for_memory(guard, lacking);
        if (!is_open(why)) return {};
        if (freed && (gather_all() || found_after_gpu_wait())) return served();
        // Releases the lock: host functions in the awaited work may free. Others may take what was
        // waited for, hence more than once.
        for (int waits = 0; waits < kWaits && parts_.wait(guard); ++waits) {
            if (!is_open(why)) return {};
            if (gather_all()) return served();
        }
        if (!freed) break;
    }
    maintenance_.notice();
    if (why.kind == Failure::Kind::out_of_memory) why.message = explain(request.asked, why);
    return {};
}

// What callbacks must free if all that is free, and all that the pool may still take from the
// driver, can be used: less than the whole request, most often. At least 1.
std::uint64_t Pool::lacking_bytes(std::uint64_t bytes) const {
    const std::uint64_t most = parts_.memory.most_bytes(), live = live_bytes();
    const std::uint64_t room = most - std::min(most, live);
    return std::max(bytes, room + 1) - room;
}

// Releases the lock: callbacks free to the pool. False: nothing was freed.
bool Pool::ask_for_memory(std::unique_lock<BriefMutex>& guard, std::uint64_t bytes) {
    guard.unlock();
    const bool freed = shortage_.ask(bytes) > 0;
    guard.lock();
    return freed;
}

// Idle memory. No driver call.
BlockRef Pool::take_idle(ThreadCache& cache, const Request& request) {
    if (is_range(request.index)) return parts_.memory.take_idle_range(request.bytes);
    const std::uint64_t batch = parts_.config.batch_alloc_count;
    return fill_cache(cache, request.index, parts_.memory.take_idle_small(request.index, batch));
}

// A small block where no idle range has room for a whole batch: a slab on free memory of the
// stream, or one of a single block.
bool Pool::found_small(ThreadCache& cache, const Request& request, BlockRef& block) {
    if (is_range(request.index)) return false;
    for (const std::uint64_t batch : {parts_.config.batch_alloc_count, std::uint64_t{1}}) {
        if (cache.stream_cache != nullptr &&
            parts_.memory.make_slab_of(*cache.stream_cache, request.index, batch)) {
            block = parts_.threads.refill(cache, request.index, request.bytes);
            if (block.slab != nullptr) return true;
        }
    }
    block = parts_.memory.take_idle_small(request.index, 1);
    if (block.slab == nullptr) return false;
    ++parts_.counters.idle_hits;
    return true;
}

// Driver calls: free pieces are mapped where they are needed, or new ones.
DeviceMemory::Made Pool::make(ThreadCache& cache, const Request& request,
                              DeviceMemory::Thrift thrift, Failure& why) {
    if (is_range(request.index)) {
        // Memory of a capture stays where it is.
        const bool may_move = cache.stream_cache != nullptr && !is_capture(cache.number);
        return parts_.memory.make_range(request.bytes, may_move ? cache.stream_cache : nullptr,
                                        thrift, why);
    }
    for (const std::uint64_t batch : {parts_.config.batch_alloc_count, std::uint64_t{1}}) {
        const DeviceMemory::Made made = parts_.memory.make_small(request.index, batch, why);
        if (made.block.slab != nullptr) {
            return {fill_cache(cache, request.index, made.block), made.grown};
        }
    }
    return {};
}

// Small blocks come in batches: those not handed out now go into the thread cache.
BlockRef Pool::fill_cache(ThreadCache& cache, ClassIndex index, BlockRef first) {
    if (first.slab == nullptr) return first;
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

// From another stream whose work is done. A stream that lacks a small block of a class soon lacks
// another: takes up to half of the other stream's, as far as the thread cache has room.
BlockRef Pool::take_of_others(ThreadCache& cache, const Request& request) {
    const ClassIndex index = request.index;
    int questions = kQuestions;
    const Streams::Caches& caches = parts_.streams.caches();
    for (std::size_t looks = std::min(caches.size(), kOthers); looks > 0; --looks) {
        next_other_ = (next_other_ + 1) % caches.size();
        if (caches[next_other_] == cache.stream_cache) continue;
        StreamCache& stream_cache = *caches[next_other_];
        // Another thread uses it: not worth a wait.
        const std::unique_lock guard(stream_cache.lock, std::try_to_lock);
        if (!guard || !stream_cache.may_have(index, request.bytes)) continue;
        if (is_broken(Rule::fence_has_passed)) return stream_cache.take_own(index, request.bytes);
        const auto ask = [&](Fences::Number fence) {
            if (stream_cache.fences.has_passed(fence) || questions == 0) return;
            --questions;
            if (!stream_cache.fences.is_recorded(fence)) stream_cache.record_fence();
            stream_cache.fences.poll();
        };
        if (is_range(index)) {
            FreeRanges& ranges = stream_cache.ranges;
            Slab* range = ranges.take_passed(request.bytes, stream_cache.fences);
            if (range == nullptr) {
                ask(ranges.newest());
                range = ranges.take_passed(request.bytes, stream_cache.fences);
            }
            if (range != nullptr) return {range, 0};
            continue;
        }
        ask(stream_cache.bins[index].blocks.front().fence);
        const ThreadCache::Entered entered(cache);
        const std::size_t held = stream_cache.bins[index].blocks.size();
        std::size_t more = std::min((held - 1) / 2, parts_.threads.room_for(cache, index));
        if (cache.ended || !cache.try_to_make_room(index, more)) more = 0;
        std::vector<BlockRef> blocks;
        blocks.reserve(1 + more);
        stream_cache.take_passed(index, 1 + more, blocks);
        if (blocks.empty()) continue;
        for (; blocks.size() > 1; blocks.pop_back()) cache.keep(blocks.back());
        return blocks.front();
    }
    return {};
}

BlockRef Pool::take_after_gpu_wait(const ThreadCache& cache, const Request& request) {
    if (cache.stream_cache == nullptr || cache.stream.capture != 0) return {};
    // During a capture on a blocking stream, a wait on the legacy stream would break the capture.
    const CUstream waits = cache.stream.handle;
    if (is_legacy(waits) && is_captured(parts_.card.call, waits)) return {};
    for (const auto& each : parts_.streams.caches()) {
        if (each == cache.stream_cache) continue;
        StreamCache& stream_cache = *each;
        const std::lock_guard guard(stream_cache.lock);
        const BlockRef block = stream_cache.take_after_wait(request.index, request.bytes, waits);
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
        parts_.threads.drain_all();
        if (may_wait) {
            ask_for_memory(guard, lacking_bytes(bytes));
            parts_.wait(guard);
            parts_.direct.free_ended(guard);
            if (!is_open(why)) return 0;
        }
        parts_.collect();
        parts_.memory.release_idle(DeviceMemory::kAnyTime);
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
