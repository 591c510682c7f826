// Threads with their caches, and the way of blocks between them and the stream caches of their
// streams.
#include <algorithm>
#include <bit>

#include "base/rules.h"
#include "base/scopes.h"
#include "pool/pool.h"
#include "pool/threads/threads.h"

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kRefillPart = 64;       // of a cache's bytes
constexpr std::uint64_t kRefillPartOfRoom = 8;  // that it has left
// Parts of a cache's bytes: what leaves when there are too many, a block that is too large to stay,
// and one that is too small to matter.
constexpr std::uint64_t kSpilledPart = 8;
constexpr std::uint64_t kLargePart = 16;
constexpr std::uint64_t kLightPart = 1024;

// How many blocks of a class stay, where the last may have `worth` bytes. The second is asked for
// less often than the first, the third less than the second: each must weigh a quarter.
std::size_t worth_keeping(std::uint64_t bytes, std::uint64_t worth) {
    if (bytes > worth) return 0;
    return static_cast<std::size_t>(1 + (std::bit_width(worth / bytes) - 1) / 2);
}

}  // namespace

// A stream that is used after it was announced to end is another one from then on.
ThreadCache* Pool::cache_of(const StreamRef& stream, Failure& why) {
    ThreadCache* const cache = find_cache(id_, stream);
    if (cache != nullptr && !cache->has_ended()) return cache;
    const std::lock_guard guard(lock_);
    const std::optional<std::uint32_t> number = number_of(stream, why);
    if (!number) return nullptr;
    if (cache != nullptr) {
        const SlowPathScope scope(call_, context_);
        retire_ended();
    }
    return &cache_of_number(*number);
}

// With the lock.
ThreadCache& Pool::cache_of_number(std::uint32_t number) {
    if (ThreadCache* const cache = find_cache_by_number(id_, number)) return *cache;
    return *make_cache(number);
}

Pool::Known& Pool::known(std::uint32_t number) {
    return is_capture(number) ? captures_[number & ~kCaptureBit] : streams_[number];
}

std::optional<std::uint32_t> Pool::number_of(const StreamRef& stream, Failure& why) {
    if (closed()) {
        why = Failure::closed("the pool");
        return {};
    }
    const StreamKey key{stream.id, stream.capture};
    if (const auto found = numbers_.find(key); found != numbers_.end()) {
        // First seen as a raw handle, perhaps, and now as a stream of ours.
        StreamCache& stream_cache = *known(found->second).stream_cache;
        const std::lock_guard guard(stream_cache.lock);
        stream_cache.stream.durable |= stream.durable;
        known(found->second).durable |= stream.durable;
        return found->second;
    }
    const SlowPathScope scope(call_, context_);
    CUcontext context = context_;  // of which the legacy stream is by definition
    if (!is_legacy(stream.handle) &&
        failed(call_.cuStreamGetCtx(stream.handle, &context), "cuStreamGetCtx", why)) {
        return {};
    }
    if (context != context_) {
        why = Failure::bad_value("the stream is of another context than the pool");
        return {};
    }
    auto& list = stream.capture == 0 ? streams_ : captures_;
    auto number = static_cast<std::uint32_t>(list.size());
    if (number == kCaptureBit) {
        why = Failure::bad_value("the pool has seen too many streams (8,388,608)");
        return {};
    }
    std::shared_ptr<GraphLife> graph;
    if (stream.capture != 0) {
        number |= kCaptureBit;
        cuuint64_t id = 0;
        CUgraph captured = nullptr;
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        const CUresult result = call_.cuStreamGetCaptureInfo_v2(stream.handle, &status, &id,
                                                                &captured, nullptr, nullptr);
        if (result != CUDA_SUCCESS || id != stream.capture || captured == nullptr) {
            why = Failure::bad_value("the stream's capture is over or was broken");
            return {};
        }
        graph = GraphLife::of(call_, captured);
    }
    const auto stream_cache = std::make_shared<StreamCache>(events_, number, stream);
    list.push_back({stream_cache, std::move(graph), stream.capture, stream.handle, stream.durable});
    (stream.capture == 0 ? stream_caches_ : arenas_).push_back(stream_cache);
    numbers_.emplace(key, number);
    return number;
}

ThreadCache* Pool::make_cache(std::uint32_t number) {
    // The checker of a simulated GPU listens to threads with a context.
    const SlowPathScope scope(call_, context_);
    forget_gone_pools();
    retire_ended();
    caches_.push_back(std::make_unique<ThreadCache>());
    ThreadCache* const cache = caches_.back().get();
    cache->number = number;
    const Known& stream = known(number);
    if (stream.stream_cache != nullptr) {
        cache->stream = stream.stream_cache->stream;
        cache->stream_cache = stream.stream_cache;
    }
    cache->ended = stream.stream_cache == nullptr || stream.stream_cache->ended;
    usage_.add(*cache);
    remember_cache(id_, cache);
    const std::vector<ThreadCache*> mine = caches_of_this_thread(id_);
    for (ThreadCache* each : mine) set_bounds(*each, mine.size());
    if (mine.size() > 1) usage_.share_slack(mine);
    return cache;
}

// A thread shares what it may keep evenly between its streams.
void Pool::set_bounds(ThreadCache& cache, std::size_t caches_of_thread) {
    cache.caches_of_thread = caches_of_thread;
    cache.most_blocks.store(config_.thread_cache_max_blocks, std::memory_order_relaxed);
    const std::uint64_t bytes =
        std::min(config_.cache_bytes, config_.thread_cache_bytes / caches_of_thread);
    cache.most_bytes.store(bytes, std::memory_order_relaxed);
    const std::uint64_t large = std::clamp<std::uint64_t>(bytes / kLargePart, 1, kLargestRequest);
    cache.first_large.store(fine_class_of(large), std::memory_order_relaxed);
}

void Pool::cache_ending(ThreadCache* cache) {
    const std::lock_guard guard(lock_);
    std::optional<SlowPathScope> scope;
    if (!abandoned_) scope.emplace(call_, context_);
    retire(cache);
}

// A thread that works with ever new streams keeps caches only of those that live.
void Pool::retire_ended() {
    for (ThreadCache* ended : forget_ended_caches(id_)) retire(ended);
}

void Pool::retire(ThreadCache* cache) {
    if (!abandoned_) drain(*cache);
    usage_.remove(*cache);
    ended_.add(cache->counters);
    largest_ = std::max(largest_, cache->largest);
    std::erase_if(caches_, [&](const auto& each) { return each.get() == cache; });
}

// All blocks of a cache to their stream cache; to idle memory where the stream's work is long done.
void Pool::drain(ThreadCache& cache, bool end) {
    Known& stream = known(cache.number);
    std::vector<BlockRef> blocks;
    const auto take_out = [&] {
        const ThreadCache::Visited visited(cache);
        std::size_t count = 0;
        for (ClassIndex index = 0; index < kClasses; ++index) {
            const std::size_t kept = cache.bins[index].blocks.size();
            if (stream.stream_cache != nullptr && kept > 0)
                stream.stream_cache->make_room(index, kept);
            count += kept;
        }
        blocks.reserve(count);
        for (ThreadCache::Bin& bin : cache.bins) {
            blocks.insert(blocks.end(), bin.blocks.begin(), bin.blocks.end());
            bin.blocks.clear();
            bin.low = 0;
        }
        cache.bytes = 0;
        cache.top = 0;
        cache.ended |= end;
    };
    const bool late = stream.stream_cache != nullptr && stream.stream_cache->ended &&
                      is_broken(Rule::late_free_waits_for_last_fence);
    if (stream.stream_cache == nullptr || late) {
        take_out();
        for (const BlockRef& block : blocks) give_idle(block);
        return;
    }
    const std::lock_guard guard(stream.stream_cache->lock);
    take_out();
    for (const BlockRef& block : blocks) stream.stream_cache->put(block);
}

void Pool::reclaim_caches() {
    for (const auto& cache : caches_) drain(*cache);
}

std::size_t Pool::room_for(const ThreadCache& cache, ClassIndex index, bool stream_cached) const {
    const std::uint64_t most_bytes = cache.most_bytes.load(std::memory_order_relaxed);
    const std::uint64_t most_blocks = cache.most_blocks.load(std::memory_order_relaxed);
    const std::uint64_t held = cache.bins[index].blocks.size();
    if (cache.bytes >= most_bytes || held >= most_blocks) return 0;
    if (index >= cache.first_large.load(std::memory_order_relaxed)) return 0;
    // A refill is a small part of the cache: one with much of a class would push the others out. A
    // cache that is only taken from has room, and gets more of what its stream has already.
    const std::uint64_t room = most_bytes - cache.bytes;
    std::uint64_t bytes = most_bytes / kRefillPart;
    if (stream_cached) bytes = std::max(bytes, room / kRefillPartOfRoom);
    bytes = std::min(bytes, room);
    return std::min({batch_.load(std::memory_order_relaxed) - 1, most_blocks - held,
                     bytes / class_bytes(index)});
}

// The stream's own blocks, at once. Takes a few: what is not handed out now goes into the cache.
BlockRef Pool::take_from_stream_cache(ThreadCache& cache, ClassIndex index) {
    if (cache.stream_cache == nullptr) return {};
    StreamCache& stream_cache = *cache.stream_cache;
    const std::lock_guard guard(stream_cache.lock);
    if (stream_cache.ended) return {};
    const BlockRef first = stream_cache.take_newest(index);
    if (first.slab == nullptr) return {};
    ++stream_cache.hits;
    if (is_large(index)) return first;
    const ThreadCache::Entered entered(cache);
    for (std::size_t more = room_for(cache, index, true); more > 0; --more) {
        if (!cache.try_to_make_room(index)) break;
        const BlockRef block = stream_cache.take_newest(index);
        if (block.slab == nullptr) break;
        cache.keep(block);
    }
    return first;
}

void Pool::spill(const Full& full) {
    ThreadCache& cache = *full.cache;
    bool ended = true, many = false;
    if (cache.stream_cache != nullptr) {
        StreamCache& stream_cache = *cache.stream_cache;
        const std::lock_guard guard(stream_cache.lock);
        ended = stream_cache.ended;
        if (!ended) many = evict_excess(cache, full.index);
        // A stream that may vanish unseen gets its fence while it is sure to live: when it was
        // given to this very call, once for as many bytes as a cache holds. Of others it is put off
        // until somebody needs it: their own blocks come back to them without one.
        if (!ended && full.given && !stream_cache.stream.durable &&
            stream_cache.stream.capture == 0 &&
            stream_cache.bytes_since_fence >= cache.most_bytes.load(std::memory_order_relaxed)) {
            const SlowPathScope scope(call_, context_);
            stream_cache.record_fence_here();
        }
    }
    if (!ended && !many) return;
    const std::lock_guard guard(lock_);
    if (abandoned_) return;
    const SlowPathScope scope(call_, context_);
    if (ended) {
        drain(cache);
        drop_ended();
        return;
    }
    StreamCache& stream_cache = *cache.stream_cache;
    const std::lock_guard stream_guard(stream_cache.lock);
    stream_cache.record_fence();
    stream_cache.fences.ask();
    const std::size_t most = stream_cache_blocks_.load(std::memory_order_relaxed);
    for (ClassIndex index = 0; index < kClasses; ++index) {
        const std::size_t held = stream_cache.bins[index].blocks.size();
        if (held > most) collect(stream_cache, index, held - most);
    }
}

// With the stream cache's lock. True: the stream cache has more of a class than it should.
bool Pool::evict_excess(ThreadCache& cache, ClassIndex full) {
    StreamCache& stream_cache = *cache.stream_cache;
    bool many = false;
    const ThreadCache::Entered entered(cache);
    // The oldest go.
    const auto move = [&](ClassIndex index, std::size_t blocks) {
        ThreadCache::Bin& from = cache.bins[index];
        blocks = std::min(blocks, from.blocks.size());
        cache.bytes -= stream_cache.put(index, {from.blocks.data(), blocks});
        from.drop_oldest(static_cast<std::uint32_t>(blocks));
        many |= stream_cache.bins[index].blocks.size() >
                stream_cache_blocks_.load(std::memory_order_relaxed);
    };
    const std::uint64_t most = cache.most_bytes.load(std::memory_order_relaxed);
    if (full >= cache.first_large.load(std::memory_order_relaxed)) {
        move(full, cache.bins[full].blocks.size());
    } else if (cache.bytes <= most) {
        move(full, (cache.bins[full].blocks.size() + 1) / 2);
    }
    // Smaller ones, or the bound has fallen.
    if (cache.bytes > most) evict_bytes(cache, most, move);
    while (cache.top > 0 && cache.bins[cache.top].blocks.empty()) --cache.top;
    return many;
}

// Too many bytes: what nobody needed while half as many went goes, then what is worth least. Of
// both the largest first, for the small ones weigh nothing.
template <class Move>
void Pool::evict_bytes(ThreadCache& cache, std::uint64_t most, Move move) {
    const std::uint64_t enough = most - most / kSpilledPart;
    const std::uint64_t light = most / kLightPart;
    const auto down_to = [&](ClassIndex index, std::size_t kept) {
        if (cache.bytes <= enough || cache.bins[index].blocks.size() <= kept) return;
        const std::uint64_t each = class_bytes(index);
        const std::uint64_t excess = (cache.bytes - enough + each - 1) / each;
        move(index, std::min<std::uint64_t>(excess, cache.bins[index].blocks.size() - kept));
    };
    if (cache.spilled >= most / 2) {
        cache.spilled = 0;
        for (ClassIndex index = cache.top + 1; index-- > 0 && class_bytes(index) >= light;) {
            ThreadCache::Bin& bin = cache.bins[index];
            down_to(index, bin.size() - bin.low);
            bin.note_turnover();
        }
    }
    cache.spilled += most - enough;
    // It was found out the last time, and is now perhaps more.
    cache.worth = std::clamp(2 * cache.worth, light, most);
    for (; cache.bytes > enough; cache.worth /= 2) {
        const std::uint64_t least = cache.worth < light ? 0 : light;
        for (ClassIndex index = cache.top + 1; index-- > 0 && class_bytes(index) >= least;) {
            down_to(index, worth_keeping(class_bytes(index), cache.worth));
        }
    }
}

}  // namespace vramkit::pool
