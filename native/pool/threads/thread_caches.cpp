// Thread caches are made, filled, emptied and retired.
#include "pool/threads/thread_caches.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "base/rules.h"
#include "pool/threads/threads.h"

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kRefillPart = 64;       // a refill takes this part of a cache's bytes
constexpr std::uint64_t kRefillPartOfRoom = 8;  // ... of the room that it has left
// Parts of a cache's bytes: what leaves when there are too many, a block that is too large to stay,
// and one that is too small to matter.
constexpr std::uint64_t kSpilledPart = 8;
constexpr std::uint64_t kLargePart = 16;
constexpr std::uint64_t kLightPart = 1024;

// How many blocks of a class stay, if the last one may have `worth` bytes. The second is needed
// less often than the first, the third less than the second: each further block counts four times
// as much.
std::size_t worth_keeping(std::uint64_t bytes, std::uint64_t worth) {
    if (bytes > worth) return 0;
    return static_cast<std::size_t>(1 + (std::bit_width(worth / bytes) - 1) / 2);
}

// The first class whose blocks have at least so many bytes.
ClassIndex first_class_from(std::uint64_t bytes) {
    if (bytes < kSpan) return fine_class_of(std::max<std::uint64_t>(bytes, 1));
    return range_class_of(round_up(bytes, kSpan));
}

}  // namespace

ThreadCache& ThreadCaches::of(std::uint32_t number) {
    if (ThreadCache* const cache = find_cache_by_number(pool_, number)) return *cache;
    return *make(number);
}

ThreadCache* ThreadCaches::make(std::uint32_t number) {
    // The checker of a simulated GPU needs a current context on the thread.
    const SlowPathScope scope = card_.enter();
    forget_gone_pools();
    retire_ended();
    caches_.push_back(std::make_unique<ThreadCache>());
    ThreadCache* const cache = caches_.back().get();
    cache->number = number;
    const StreamRecord& stream = streams_[number];
    if (stream.cache != nullptr) {
        cache->stream = stream.cache->stream;
        cache->stream_cache = stream.cache;
    }
    cache->ended = stream.cache == nullptr || stream.cache->ended;
    usage.add(*cache);
    remember_cache(pool_, cache);
    const std::vector<ThreadCache*> mine = caches_of_this_thread(pool_);
    for (ThreadCache* each : mine) set_bounds(*each, mine.size());
    if (mine.size() > 1) usage.share_slack(mine);
    return cache;
}

void ThreadCaches::configure(const Config& config) {
    batch_.store(config.batch_alloc_count, std::memory_order_relaxed);
    stream_cache_blocks_.store(config.global_cache_max_blocks, std::memory_order_relaxed);
    most_blocks_ = config.thread_cache_max_blocks;
    most_bytes_ = config.cache_bytes;
    most_thread_bytes_ = config.thread_cache_bytes;
    for (const auto& cache : caches_) set_bounds(*cache, cache->caches_of_thread);
}

// A thread divides the bytes that it may keep evenly among its streams.
void ThreadCaches::set_bounds(ThreadCache& cache, std::size_t caches_of_thread) const {
    cache.caches_of_thread = caches_of_thread;
    cache.most_blocks.store(most_blocks_, std::memory_order_relaxed);
    const std::uint64_t bytes = std::min(most_bytes_, most_thread_bytes_ / caches_of_thread);
    cache.most_bytes.store(bytes, std::memory_order_relaxed);
    cache.first_large.store(first_class_from(std::min(bytes / kLargePart, kPage)),
                            std::memory_order_relaxed);
}

void ThreadCaches::retire_ended() {
    for (ThreadCache* ended : forget_ended_caches(pool_)) retire(ended);
}

void ThreadCaches::retire(ThreadCache* cache) {
    if (!card_.forgotten) drain(*cache);
    usage.remove(*cache);
    ended_.add(cache->counters);
    largest_ = std::max(largest_, cache->largest);
    std::erase_if(caches_, [&](const auto& each) { return each.get() == cache; });
}

void ThreadCaches::drain(ThreadCache& cache, bool end, ClassIndex from) {
    const StreamRecord& stream = streams_[cache.number];
    std::vector<BlockRef> blocks;
    const auto take_out = [&] {
        const ThreadCache::Visited visited(cache);
        std::size_t count = 0;
        for (ClassIndex index = from; index < kClasses; ++index) {
            const std::size_t kept = cache.bins[index].blocks.size();
            if (stream.cache != nullptr && kept > 0) stream.cache->make_room(index, kept);
            count += kept;
        }
        blocks.reserve(count);
        for (ClassIndex index = from; index < kClasses; ++index) {
            ThreadCache::Bin& bin = cache.bins[index];
            for (const BlockRef& block : bin.blocks) cache.bytes -= block.bytes();
            blocks.insert(blocks.end(), bin.blocks.begin(), bin.blocks.end());
            bin.blocks.clear();
            bin.low = 0;
            cache.filled.clear(index);
        }
        cache.ended |= end;
    };
    const bool late = stream.cache != nullptr && stream.cache->ended &&
                      is_broken(Rule::late_free_waits_for_last_fence);
    if (stream.cache == nullptr || late) {
        take_out();
        for (const BlockRef& block : blocks) streams_.give_idle(block);
        return;
    }
    const std::lock_guard guard(stream.cache->lock);
    take_out();
    for (const BlockRef& block : blocks) stream.cache->put(block);
}

void ThreadCaches::drain_all() {
    for (const auto& cache : caches_) drain(*cache);
}

void ThreadCaches::drain_ranges() {
    for (const auto& cache : caches_) {
        if (cache->bytes >= kSpan) drain(*cache, false, kFirstRange);
    }
}

std::uint64_t ThreadCaches::cached_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& cache : caches_) sum += cache->bytes;
    return sum;
}

void ThreadCaches::decay() {
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
            if (is_range(index)) {
                stream_cache.ranges_unneeded += unneeded * class_bytes(index);
            } else {
                stream_cache.bins[index].unneeded += unneeded;
            }
            bin.drop_oldest(unneeded);
            bin.note_look();
        }
        cache->spilled = 0;
    }
}

void ThreadCaches::end_stream(std::uint32_t number) {
    for (const auto& cache : caches_) {
        if (cache->number == number) drain(*cache, true);
    }
    streams_.end(number);
}

void ThreadCaches::drop_ended() {
    for (const std::uint32_t number : streams_.captures_that_are_over()) end_stream(number);
    streams_.drop_ended();
}

std::size_t ThreadCaches::room_for(const ThreadCache& cache, ClassIndex index,
                                   bool from_stream_cache) const {
    const std::uint64_t most_bytes = cache.most_bytes.load(std::memory_order_relaxed);
    const std::uint64_t most_blocks = cache.most_blocks.load(std::memory_order_relaxed);
    const std::uint64_t held = cache.bins[index].blocks.size();
    if (cache.bytes >= most_bytes || held >= most_blocks) return 0;
    if (index >= cache.first_large.load(std::memory_order_relaxed)) return 0;
    // A refill is a small part of the cache: a large one would evict the other classes. A cache
    // that is mostly taken from has room, and gets more of what its stream cache has.
    const std::uint64_t room = most_bytes - cache.bytes;
    std::uint64_t bytes = most_bytes / kRefillPart;
    if (from_stream_cache) bytes = std::max(bytes, room / kRefillPartOfRoom);
    bytes = std::min(bytes, room);
    return std::min({batch_.load(std::memory_order_relaxed) - 1, most_blocks - held,
                     bytes / class_bytes(index)});
}

BlockRef ThreadCaches::refill(ThreadCache& cache, ClassIndex index, std::uint64_t bytes) {
    if (cache.stream_cache == nullptr) return {};
    StreamCache& stream_cache = *cache.stream_cache;
    const std::lock_guard guard(stream_cache.lock);
    if (stream_cache.ended) return {};
    // One that thread caches do not keep.
    const bool large =
        is_range(index) && index >= cache.first_large.load(std::memory_order_relaxed);
    BlockRef first = large ? BlockRef{stream_cache.ranges.take_exact(bytes), 0}
                           : stream_cache.take_own(index, bytes);
    if (large && first.slab == nullptr && !stream_cache.keeps_blocks) {
        give_up_ranges(cache, stream_cache);
        first = stream_cache.take_best(bytes);
    }
    if (first.slab == nullptr) return {};
    ++stream_cache.hits;
    // Ranges that stay in the stream cache can be joined with others, so a thread that frees its
    // own takes one at a time. One that lives on what another thread frees would come here for each
    // of them.
    const bool handed_over =
        stream_cache.spilled_by != nullptr && stream_cache.spilled_by != &cache;
    if (is_range(index) && !handed_over) return first;
    const ThreadCache::Entered entered(cache);
    for (std::size_t more = room_for(cache, index, true); more > 0; --more) {
        if (!cache.try_to_make_room(index)) break;
        const BlockRef block = stream_cache.take_same(index);
        if (block.slab == nullptr) break;
        cache.keep(block);
    }
    return first;
}

// Before a large range is cut: with what the thread keeps, neighbours may be joined to a better
// fit.
void ThreadCaches::give_up_ranges(ThreadCache& cache, StreamCache& stream_cache) {
    const ThreadCache::Entered entered(cache);
    cache.filled.each_down(kFirstRange, [&](ClassIndex index) {
        ThreadCache::Bin& bin = cache.bins[index];
        cache.bytes -= stream_cache.put(index, bin.blocks);
        bin.drop_all();
        cache.filled.clear(index);
    });
}

bool ThreadCaches::evict_excess(ThreadCache& cache, ClassIndex full) {
    StreamCache& stream_cache = *cache.stream_cache;
    bool many = false;
    stream_cache.spilled_by = &cache;
    const ThreadCache::Entered entered(cache);
    // Moves the oldest.
    const auto move = [&](ClassIndex index, std::size_t blocks) {
        ThreadCache::Bin& from = cache.bins[index];
        blocks = std::min(blocks, from.blocks.size());
        cache.bytes -= stream_cache.put(index, {from.blocks.data(), blocks});
        from.drop_oldest(static_cast<std::uint32_t>(blocks));
        many |= !is_range(index) && stream_cache.bins[index].blocks.size() >
                                        stream_cache_blocks_.load(std::memory_order_relaxed);
    };
    const std::uint64_t most = cache.most_bytes.load(std::memory_order_relaxed);
    if (full >= cache.first_large.load(std::memory_order_relaxed)) {
        move(full, cache.bins[full].blocks.size());
    } else if (cache.bytes <= most) {
        move(full, (cache.bins[full].blocks.size() + 1) / 2);
    }
    // Other classes are to blame, or the bound was lowered.
    if (cache.bytes > most) evict_bytes(cache, most, move);
    return many;
}

// Too many bytes: first blocks leave that were not needed while half of the cache was spilled, then
// those that are worth least. The largest first in both cases, since small ones hardly count.
template <class Move>
void ThreadCaches::evict_bytes(ThreadCache& cache, std::uint64_t most, Move move) {
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
        cache.filled.each_down(first_class_from(light), [&](ClassIndex index) {
            ThreadCache::Bin& bin = cache.bins[index];
            down_to(index, bin.size() - bin.low);
            bin.note_turnover();
            if (bin.blocks.empty()) cache.filled.clear(index);
        });
    }
    cache.spilled += most - enough;
    // Start a little above the value that was found the last time.
    cache.worth = std::clamp(2 * cache.worth, light, most);
    for (; cache.bytes > enough; cache.worth /= 2) {
        const std::uint64_t least = cache.worth < light ? 0 : light;
        cache.filled.each_down(first_class_from(least), [&](ClassIndex index) {
            down_to(index, worth_keeping(class_bytes(index), cache.worth));
        });
    }
}

std::uint64_t ThreadCaches::largest_asked_for() const {
    const AllVisited visited(caches_);
    std::uint64_t largest = largest_;
    for (const auto& cache : caches_) largest = std::max(largest, cache->largest);
    return largest;
}

std::uint64_t ThreadCaches::reset_largest() {
    const AllVisited visited(caches_);
    std::uint64_t largest = std::exchange(largest_, 0);
    for (const auto& cache : caches_) {
        largest = std::max(largest, std::exchange(cache->largest, std::uint64_t{0}));
    }
    return largest;
}

Counters ThreadCaches::counters() const {
    Counters all = ended_;
    const AllVisited visited(caches_);
    for (const auto& cache : caches_) all.add(cache->counters);
    return all;
}

void ThreadCaches::drop_blocks() {
    for (const auto& cache : caches_) {
        const ThreadCache::Visited visited(*cache);
        for (ThreadCache::Bin& bin : cache->bins) bin = {};
        cache->bytes = 0;
    }
}

}  // namespace vramkit::pool
