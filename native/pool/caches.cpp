// Threads with their caches, and the way of blocks between them and the shelves of their streams.
#include <algorithm>
#include <bit>

#include "pool/pool.h"
#include "pool/scopes.h"
#include "pool/threads.h"

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
Cache* Pool::cache_of(const StreamRef& stream, Failure& why) {
    Cache* const cache = find_cache(id_, stream);
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
Cache& Pool::cache_of_number(std::uint32_t number) {
    if (Cache* const cache = find_cache_by_number(id_, number)) return *cache;
    return *make_cache(number);
}

Pool::Known& Pool::known(std::uint32_t number) {
    return is_capture(number) ? captures_[number & ~kCaptureBit] : streams_[number];
}

std::optional<std::uint32_t> Pool::number_of(const StreamRef& stream, Failure& why) {
    if (closed()) {
        why = Failure::closed();
        return {};
    }
    const StreamKey key{stream.id, stream.capture};
    if (const auto found = numbers_.find(key); found != numbers_.end()) {
        // First seen as a raw handle, perhaps, and now as a stream of ours.
        Shelf& shelf = *known(found->second).shelf;
        const std::lock_guard guard(shelf.lock);
        shelf.stream.told |= stream.told;
        known(found->second).told |= stream.told;
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
    const auto shelf = std::make_shared<Shelf>(events_, number, stream);
    list.push_back({shelf, std::move(graph), stream.capture, stream.handle, stream.told});
    (stream.capture == 0 ? shelves_ : arenas_).push_back(shelf);
    numbers_.emplace(key, number);
    return number;
}

Cache* Pool::make_cache(std::uint32_t number) {
    // The checker of a simulated GPU listens to threads with a context.
    const SlowPathScope scope(call_, context_);
    forget_gone_pools();
    retire_ended();
    caches_.push_back(std::make_unique<Cache>());
    Cache* const cache = caches_.back().get();
    cache->number = number;
    const Known& stream = known(number);
    if (stream.shelf != nullptr) {
        cache->stream = stream.shelf->stream;
        cache->shelf = stream.shelf;
    }
    cache->ended = stream.shelf == nullptr || stream.shelf->ended;
    usage_.add(*cache);
    remember_cache(id_, cache);
    const std::vector<Cache*> mine = caches_of_this_thread(id_);
    for (Cache* each : mine) set_bounds(*each, mine.size());
    if (mine.size() > 1) usage_.share_slack(mine);
    return cache;
}

// A thread shares what it may keep evenly between its streams.
void Pool::set_bounds(Cache& cache, std::size_t caches_of_thread) {
    cache.caches_of_thread = caches_of_thread;
    cache.most_blocks.store(config_.thread_cache_max_blocks, std::memory_order_relaxed);
    const std::uint64_t bytes =
        std::min(config_.cache_bytes, config_.thread_cache_bytes / caches_of_thread);
    cache.most_bytes.store(bytes, std::memory_order_relaxed);
    const std::uint64_t large = std::clamp<std::uint64_t>(bytes / kLargePart, 1, kLargestRequest);
    cache.first_large.store(fine_class_of(large), std::memory_order_relaxed);
}

void Pool::cache_ending(Cache* cache) {
    const std::lock_guard guard(lock_);
    std::optional<SlowPathScope> scope;
    if (!abandoned_) scope.emplace(call_, context_);
    retire(cache);
}

// A thread that works with ever new streams keeps caches only of those that live.
void Pool::retire_ended() {
    for (Cache* ended : forget_ended_caches(id_)) retire(ended);
}

void Pool::retire(Cache* cache) {
    if (!abandoned_) drain(*cache);
    usage_.remove(*cache);
    ended_.add(cache->counters);
    largest_ = std::max(largest_, cache->largest);
    std::erase_if(caches_, [&](const auto& each) { return each.get() == cache; });
}

// All blocks of a cache to their shelf; to idle memory where the stream's work is long done.
void Pool::drain(Cache& cache, bool end) {
    Known& stream = known(cache.number);
    std::vector<BlockRef> blocks;
    const auto take_out = [&] {
        const Cache::Visited visited(cache);
        std::size_t count = 0;
        for (ClassIndex index = 0; index < kClasses; ++index) {
            const std::size_t kept = cache.bins[index].blocks.size();
            if (stream.shelf != nullptr && kept > 0) stream.shelf->make_room(index, kept);
            count += kept;
        }
        blocks.reserve(count);
        for (Cache::Bin& bin : cache.bins) {
            blocks.insert(blocks.end(), bin.blocks.begin(), bin.blocks.end());
            bin.blocks.clear();
            bin.low = 0;
        }
        cache.bytes = 0;
        cache.top = 0;
        cache.ended |= end;
    };
    if (stream.shelf == nullptr) {
        take_out();
        for (const BlockRef& block : blocks) give_idle(block);
        return;
    }
    const std::lock_guard guard(stream.shelf->lock);
    take_out();
    for (const BlockRef& block : blocks) stream.shelf->put(block);
}

void Pool::reclaim_caches() {
    for (const auto& cache : caches_) drain(*cache);
}

std::size_t Pool::room_for(const Cache& cache, ClassIndex index, bool shelved) const {
    const std::uint64_t most_bytes = cache.most_bytes.load(std::memory_order_relaxed);
    const std::uint64_t most_blocks = cache.most_blocks.load(std::memory_order_relaxed);
    const std::uint64_t held = cache.bins[index].blocks.size();
    if (cache.bytes >= most_bytes || held >= most_blocks) return 0;
    if (index >= cache.first_large.load(std::memory_order_relaxed)) return 0;
    // A refill is a small part of the cache: one with much of a class would push the others out. A
    // cache that is only taken from has room, and gets more of what its stream has already.
    const std::uint64_t room = most_bytes - cache.bytes;
    std::uint64_t bytes = most_bytes / kRefillPart;
    if (shelved) bytes = std::max(bytes, room / kRefillPartOfRoom);
    bytes = std::min(bytes, room);
    return std::min({batch_.load(std::memory_order_relaxed) - 1, most_blocks - held,
                     bytes / class_bytes(index)});
}

// The stream's own blocks, at once. Takes a few: what is not handed out now goes into the cache.
BlockRef Pool::take_from_shelf(Cache& cache, ClassIndex index) {
    if (cache.shelf == nullptr) return {};
    Shelf& shelf = *cache.shelf;
    const std::lock_guard guard(shelf.lock);
    if (shelf.ended) return {};
    const BlockRef first = shelf.take_newest(index);
    if (first.slab == nullptr) return {};
    ++shelf.hits;
    if (is_large(index)) return first;
    const Cache::Entered entered(cache);
    for (std::size_t more = room_for(cache, index, true); more > 0; --more) {
        if (!cache.try_to_make_room(index)) break;
        const BlockRef block = shelf.take_newest(index);
        if (block.slab == nullptr) break;
        cache.keep(block);
    }
    return first;
}

void Pool::spill(const Full& full) {
    Cache& cache = *full.cache;
    bool ended = true, many = false;
    if (cache.shelf != nullptr) {
        Shelf& shelf = *cache.shelf;
        const std::lock_guard guard(shelf.lock);
        ended = shelf.ended;
        if (!ended) many = shelve_excess(cache, full.index);
        // A stream that may vanish unseen gets its mark while it is sure to live: when it was given
        // to this very call, once for as many bytes as a cache holds. Of others it is put off until
        // somebody needs it: their own blocks come back to them without one.
        if (!ended && full.given && !shelf.stream.told && shelf.stream.capture == 0 &&
            shelf.bytes_since_mark >= cache.most_bytes.load(std::memory_order_relaxed)) {
            const SlowPathScope scope(call_, context_);
            shelf.mark_here();
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
    Shelf& shelf = *cache.shelf;
    const std::lock_guard shelf_guard(shelf.lock);
    shelf.mark();
    shelf.marks.ask();
    const std::size_t most = shelf_blocks_.load(std::memory_order_relaxed);
    for (ClassIndex index = 0; index < kClasses; ++index) {
        const std::size_t held = shelf.bins[index].blocks.size();
        if (held > most) collect(shelf, index, held - most);
    }
}

// With the shelf's lock. True: the shelf has more of a class than it should.
bool Pool::shelve_excess(Cache& cache, ClassIndex full) {
    Shelf& shelf = *cache.shelf;
    bool many = false;
    const Cache::Entered entered(cache);
    // The oldest go.
    const auto move = [&](ClassIndex index, std::size_t blocks) {
        Cache::Bin& from = cache.bins[index];
        blocks = std::min(blocks, from.blocks.size());
        cache.bytes -= shelf.put(index, {from.blocks.data(), blocks});
        from.drop_oldest(static_cast<std::uint32_t>(blocks));
        many |= shelf.bins[index].blocks.size() > shelf_blocks_.load(std::memory_order_relaxed);
    };
    const std::uint64_t most = cache.most_bytes.load(std::memory_order_relaxed);
    if (full >= cache.first_large.load(std::memory_order_relaxed)) {
        move(full, cache.bins[full].blocks.size());
    } else if (cache.bytes <= most) {
        move(full, (cache.bins[full].blocks.size() + 1) / 2);
    }
    // Smaller ones, or the bound has fallen.
    if (cache.bytes > most) shelve_bytes(cache, most, move);
    while (cache.top > 0 && cache.bins[cache.top].blocks.empty()) --cache.top;
    return many;
}

// Too many bytes: what nobody needed while half as many went goes, then what is worth least. Of
// both the largest first, for the small ones weigh nothing.
template <class Move>
void Pool::shelve_bytes(Cache& cache, std::uint64_t most, Move move) {
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
            Cache::Bin& bin = cache.bins[index];
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
