// Settings in force, statistics, and the explanation of a failure.
#include <algorithm>
#include <functional>

#include "pool/pool.h"

namespace vramkit::pool {

// With the lock, or before anybody else knows the pool.
void Pool::put_in_force(const Config& config) {
    if (class_maps_.empty() || config.size_classes != config_.size_classes ||
        config.alignment != config_.alignment) {
        class_maps_.push_back(std::make_unique<ClassMap>(config.size_classes, config.alignment));
        class_map_.store(class_maps_.back().get(), std::memory_order_release);
    }
    if (config.decay_ms != config_.decay_ms) next_decay_ = 0;
    if (config.defrag_interval_ms != config_.defrag_interval_ms) next_defrag_ = 0;
    config_ = config;
    stats_on_.store(config.enable_stats, std::memory_order_relaxed);
    direct_on_.store(config.large == Large::direct, std::memory_order_relaxed);
    batch_.store(config.batch_alloc_count, std::memory_order_relaxed);
    most_bytes_.store(config.limit > 0 ? std::min(config.limit, card_bytes_) : card_bytes_,
                      std::memory_order_relaxed);
    if (extents_ != nullptr) extents_->set_handle_bytes(handle_bytes());
    stream_cache_blocks_.store(config.global_cache_max_blocks, std::memory_order_relaxed);
    for (const auto& cache : caches_) set_bounds(*cache, cache->caches_of_thread);
}

Config Pool::config() const {
    const std::lock_guard guard(lock_);
    return config_;
}

bool Pool::configure(const Config& config, Failure& why) {
    if (!is_valid(config, why)) return false;
    const std::lock_guard guard(lock_);
    if (closed()) {
        why = Failure::closed("the pool");
        return false;
    }
    const bool background = config.background != config_.background;
    if (background || config.nvtx != config_.nvtx) {
        why = Failure::bad_value(std::string(background ? "background" : "nvtx") +
                                 " is decided when the pool is made");
        return false;
    }
    if (config.nvtx && config.limit != config_.limit) {
        why = Failure::bad_value("limit is decided when the pool is made with nvtx");
        return false;
    }
    put_in_force(config);
    if (config_.background && extents_->mapped() > 0) background_thread_.wake();
    return true;
}

Counters Pool::add_up() {
    Counters all = ended_;
    const AllVisited visited(caches_);
    for (const auto& cache : caches_) all.add(cache->counters);
    return all;
}

// Free memory by where it is, and how much of it is of no use for a request of the largest size
// asked for in the last interval.
Pool::Free Pool::free_memory() {
    Free free;
    std::uint64_t wanted = 0;
    const auto count = [&](std::uint64_t bytes, std::uint64_t blocks, std::uint64_t& where) {
        if (blocks == 0) return;
        where += bytes * blocks;
        free.largest = std::max(free.largest, bytes);
        if (bytes < wanted) free.unusable += bytes * blocks;
    };
    // Small blocks of a class are all of one size. Large ones are not, and they are few.
    const auto count_bin = [&](ClassIndex index, const auto& blocks, auto ref,
                               std::uint64_t& where) {
        if (!is_large(index)) return count(class_bytes(index), blocks.size(), where);
        for (const auto& each : blocks) count(ref(each).bytes(), 1, where);
    };
    {
        const AllVisited visited(caches_);
        ClassIndex largest = std::max(largest_, largest_before_);
        for (const auto& cache : caches_) largest = std::max(largest, cache->largest);
        wanted = class_bytes(largest);
        for (const auto& cache : caches_) {
            for (ClassIndex index = 0; index <= cache->top; ++index) {
                count_bin(index, cache->bins[index].blocks, std::identity(), free.cached);
            }
        }
    }
    for (const auto* list : {&stream_caches_, &arenas_}) {
        for (const auto& stream_cache : *list) {
            const std::lock_guard guard(stream_cache->lock);
            for (ClassIndex index = 0; index < kClasses; ++index) {
                count_bin(index, stream_cache->bins[index].blocks,
                          std::mem_fn(&StreamCache::Entry::block), free.stream_cached);
            }
        }
    }
    free.stream_cached += held_blocks_.bytes() + direct_.freed_bytes();
    for (ClassIndex index = 0; !is_large(index); ++index) {
        count(class_bytes(index), slabs_->idle_blocks(index), free.slabs);
    }
    // Spans and extents become blocks of any size up to their own.
    free.spans = slabs_->free_span_bytes();
    if (wanted >= kPage) free.unusable += free.spans;
    free.extents = extents_->idle();
    if (wanted >= kPage) free.unusable += extents_->idle_smaller_than(wanted);
    for (const auto& [address, segment] : slabs_->segments()) {
        free.largest = std::max(free.largest, segment->longest_free() * kSpan);
    }
    free.largest = std::max(free.largest, extents_->largest_idle());
    return free;
}

double Pool::fragmentation_rate(const Free& free) const {
    const std::uint64_t mapped = extents_->mapped();
    return mapped == 0 ? 0.0 : static_cast<double>(free.unusable) / static_cast<double>(mapped);
}

Stats Pool::stats() {
    const std::lock_guard guard(lock_);
    const Counters now = add_up();
    Stats stats = slow_;
    stats.total_allocated = now.allocated_bytes - before_.allocated_bytes;
    stats.total_freed = now.freed_bytes - before_.freed_bytes;
    stats.allocation_count = now.allocations - before_.allocations;
    stats.free_count = now.frees - before_.frees;
    stats.cache_hits = now.hits - before_.hits;
    stats.large_blocks = large_->records() + direct_.all().size();
    for (const auto* list : {&stream_caches_, &arenas_}) {
        for (const auto& stream_cache : *list) {
            const std::lock_guard stream_guard(stream_cache->lock);
            stats.stream_cache_hits += stream_cache->hits;
            stats.events_recorded += stream_cache->recorded;
            stats.captures += stream_cache->stream.capture != 0;
            stats.large_blocks -= stream_cache->spare.size();
        }
    }
    stats.cache_misses = stats.stream_cache_hits + stats.idle_hits + stats.cross_stream_hits +
                         stats.gpu_wait_hits + stats.remap_hits + stats.growth_hits +
                         stats.direct_hits;
    stats.current_usage = static_cast<std::uint64_t>(usage_.live());
    stats.peak_usage = static_cast<std::uint64_t>(usage_.peak());
    stats.reserved = extents_->mapped() + direct_.bytes();
    stats.peak_reserved = peak_reserved_;
    const Free free = free_memory();
    stats.cached = free.cached;
    stats.waiting = free.stream_cached;
    stats.idle = free.slabs + free.spans + free.extents;
    stats.fragmentation_bytes = free.unusable;
    stats.fragmentation_rate = fragmentation_rate(free);
    stats.segments = slabs_->segments().size();
    stats.slabs = slabs_->slab_count();
    return stats;
}

std::uint64_t Pool::live_bytes() const { return static_cast<std::uint64_t>(usage_.live()); }

std::uint64_t Pool::reserved_bytes() const {
    const std::lock_guard guard(lock_);
    return extents_->mapped() + direct_.bytes();
}

void Pool::reset_stats() {
    const std::lock_guard guard(lock_);
    before_ = add_up();
    slow_ = {};
    for (const auto* list : {&stream_caches_, &arenas_}) {
        for (const auto& stream_cache : *list) {
            const std::lock_guard stream_guard(stream_cache->lock);
            stream_cache->hits = stream_cache->recorded = 0;
        }
    }
    usage_.reset_peak();
    peak_reserved_ = extents_->mapped() + direct_.bytes();
}

// By stream, as far as threads that are there tell.
std::pair<std::uint64_t, std::int64_t> Pool::holds_most_in_use() {
    std::unordered_map<std::uint64_t, std::int64_t> by_stream;
    {
        const AllVisited visited(caches_);
        for (const auto& cache : caches_) by_stream[cache->stream.id] += cache->live;
    }
    std::pair<std::uint64_t, std::int64_t> most{};
    for (const auto& each : by_stream) {
        if (each.second > most.second) most = each;
    }
    return most;
}

std::string Pool::explain(std::uint64_t bytes, const Failure& cause) {
    const Free free = free_memory();
    size_t card_free = 0, card = card_bytes_;
    call_.cuMemGetInfo_v2(&card_free, &card);
    const auto mib = [](std::uint64_t value) { return std::to_string(value >> 20) + " MiB"; };
    const auto live = static_cast<std::uint64_t>(usage_.live());
    std::string text = "out of device memory: asked for " + std::to_string(bytes) + " bytes (" +
                       mib(bytes) + "). The pool holds " + mib(extents_->mapped()) + ", of which " +
                       mib(live) + " are in use, " + mib(free.cached) + " in caches, " +
                       mib(free.stream_cached) + " waiting for streams and " +
                       mib(free.slabs + free.spans + free.extents) +
                       " idle; the largest free piece has " + mib(free.largest) +
                       ". The card has " + mib(card_free) + " of " + mib(card) + " free.";
    if (bytes > card_bytes_) return text + " No block can be larger than the card.";
    if (bytes > most_bytes_) {
        return text + " No block can be larger than the limit of " + mib(config_.limit) +
               ": raise the limit.";
    }
    const auto name = [](std::uint64_t stream) {
        return stream == kLegacyStreamId ? std::string("the legacy default stream")
                                         : "stream " + std::to_string(stream);
    };
    if (const auto [stream, held] = holds_most_in_use(); held >= static_cast<std::int64_t>(kPage)) {
        text += " Most of what is in use is of " + name(stream) + ": " +
                mib(static_cast<std::uint64_t>(held)) + ".";
    }
    // Who holds most of what cannot be had.
    std::uint64_t most = 0, holder = 0, arena = 0, unfenced = held_blocks_.bytes_awaiting_card();
    for (const auto* list : {&stream_caches_, &arenas_}) {
        for (const auto& stream_cache : *list) {
            const std::lock_guard guard(stream_cache->lock);
            if (stream_cache->stream.capture != 0) {
                arena += stream_cache->bytes;
            } else if (!stream_cache->can_record_fence() && stream_cache->has_unfenced()) {
                unfenced += stream_cache->bytes;
            }
            if (stream_cache->bytes > most) {
                most = stream_cache->bytes;
                holder = stream_cache->stream.id;
            }
        }
    }
    if (most > 0) text += " Most of what waits is of " + name(holder) + ": " + mib(most) + ".";
    if (unfenced > 0) {
        text += " Up to " + mib(unfenced) +
                " were freed on raw streams that may be gone: release_all waits for the card.";
    }
    if (arena > 0) text += " Captured graphs keep " + mib(arena) + ".";
    if (config_.limit > 0) text += " The limit is " + mib(config_.limit) + ".";
    if (cause.call.empty() && config_.limit > 0) {
        text += " Raise the limit, or free blocks.";
    } else if (free.stream_cached >= kPage) {
        text += " Work under way holds what waits: synchronise, or free earlier.";
    } else if (live + (live >> 3) >= card) {
        text += " What is in use does not fit the card: free blocks.";
    } else if (card_free + extents_->mapped() < card / 2) {
        text += " Other programs hold most of the card.";
    }
    return text;
}

}  // namespace vramkit::pool
