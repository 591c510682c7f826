// Settings, statistics, explanations and the check of the pool's equations.
#include <algorithm>

#include "pool/pool.h"

namespace vramkit::pool {

Config Pool::config() const {
    const std::lock_guard guard(lock_);
    return config_;
}

bool Pool::configure(const Config& config, Failure& why) {
    const auto refuse = [&](const char* message) {
        why = {Failure::Kind::bad_value, CUDA_SUCCESS, "", message};
        return false;
    };
    if (config.batch_alloc_count == 0) return refuse("batch_alloc_count must be at least 1");
    const std::lock_guard guard(lock_);
    if (closed()) {
        why = {Failure::Kind::closed, CUDA_SUCCESS, "", "the pool is closed"};
        return false;
    }
    config_ = config;
    cache_blocks_.store(config.thread_cache_max_blocks, std::memory_order_relaxed);
    cache_bytes_.store(config.cache_bytes, std::memory_order_relaxed);
    classes_.store(config.classes, std::memory_order_relaxed);
    stats_on_.store(config.enable_stats, std::memory_order_relaxed);
    return true;
}

Counters Pool::add_up() {
    Counters all = ended_;
    for (const auto& cache : caches_) {
        cache->take_for_sure();
        all.add(cache->counters);
        cache->leave();
    }
    return all;
}

std::uint64_t Pool::live_bytes() {
    std::int64_t live = live_bytes_.load(std::memory_order_relaxed);
    for (const auto& cache : caches_) {
        cache->take_for_sure();
        live += cache->unreported;
        cache->leave();
    }
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, live));
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
    stats.cache_misses = now.misses - before_.misses;
    stats.current_usage = live_bytes();
    stats.peak_usage = std::max<std::uint64_t>(
        stats.current_usage,
        static_cast<std::uint64_t>(peak_bytes_.load(std::memory_order_relaxed)));
    stats.reserved = reserved_;
    stats.peak_reserved = peak_reserved_;
    stats.chunks = chunks_.size();
    for (const auto& cache : caches_) {
        cache->take_for_sure();
        stats.cached += cache->bytes;
        cache->leave();
    }
    for (ClassIndex index = 0; index < kClasses; ++index) {
        stats.waiting += (bins_[index].waiting + bins_[index].fresh.size()) * class_bytes(index);
    }
    return stats;
}

void Pool::reset_stats() {
    const std::lock_guard guard(lock_);
    before_ = add_up();
    slow_ = {};
    peak_bytes_.store(static_cast<std::int64_t>(live_bytes()), std::memory_order_relaxed);
    peak_reserved_ = reserved_;
}

std::string Pool::explain(std::uint64_t bytes, const Failure& cause) {
    std::uint64_t waiting = 0, largest = 0, cached = 0;
    for (ClassIndex index = 0; index < kClasses; ++index) {
        const std::uint64_t blocks = bins_[index].waiting + bins_[index].fresh.size();
        waiting += blocks * class_bytes(index);
        if (blocks > 0) largest = class_bytes(index);
    }
    for (const auto& cache : caches_) {
        cache->take_for_sure();
        cached += cache->bytes;
        cache->leave();
    }
    size_t free = 0, total = 0;
    call_.cuMemGetInfo_v2(&free, &total);
    const auto mib = [](std::uint64_t value) { return std::to_string(value >> 20) + " MiB"; };
    std::string text = "out of device memory: asked for " + std::to_string(bytes) + " bytes (" +
                       mib(bytes) + "). The pool holds " + mib(reserved_) + ", of which " +
                       mib(live_bytes()) + " are in use, " + mib(cached) + " in caches and " +
                       mib(waiting) + " free; the largest free block has " + mib(largest) +
                       ". The " + "card has " + mib(free) + " of " + mib(total) + " free.";
    if (config_.limit > 0) text += " The limit is " + mib(config_.limit) + ".";
    if (cause.call.empty() && config_.limit > 0) text += " Raise limit=, or free blocks.";
    return text;
}

std::string Pool::check_invariants() {
    const std::lock_guard guard(lock_);
    std::unordered_map<const Chunk*, std::array<std::uint64_t, 4>> found;
    const auto count = [&](const BlockRef& block, State state, const char* where) -> std::string {
        if (block.block().state() != state && state != State::fresh) {
            return std::string("a block in ") + where + " has another state";
        }
        ++found[block.chunk][static_cast<std::size_t>(state)];
        return "";
    };
    std::string wrong;
    for (const auto& cache : caches_) {
        std::uint64_t bytes = 0;
        for (ClassIndex index = 0; index < kClasses; ++index) {
            for (const BlockRef& block : cache->bins[index]) {
                bytes += block.chunk->block_bytes;
                wrong += count(block, State::cached, "a cache");
            }
        }
        if (bytes != cache->bytes) wrong += "the bytes of a cache do not add up; ";
    }
    for (const Bin& bin : bins_) {
        std::uint64_t waiting = 0;
        for (const Batch& batch : bin.batches) {
            waiting += batch.blocks.size();
            for (const BlockRef& block : batch.blocks) {
                wrong += count(block, State::waiting, "a batch");
            }
        }
        if (waiting != bin.waiting) wrong += "the blocks of a bin do not add up; ";
        for (const BlockRef& block : bin.fresh) wrong += count(block, State::fresh, "fresh");
    }
    std::uint64_t reserved = 0;
    for (const auto& [address, chunk] : chunks_) {
        reserved += chunk->bytes;
        std::uint64_t live = 0;
        for (std::uint32_t i = 0; i < chunk->count; ++i) {
            live += chunk->blocks[i].state() == State::live;
        }
        const auto& in = found[address];
        if (live + in[0] + in[2] + in[3] != chunk->count) wrong += "a block is nowhere or twice; ";
        if (in[0] + in[3] != chunk->idle) wrong += "the idle blocks of a chunk do not add up; ";
    }
    if (reserved != reserved_) wrong += "the reserved bytes do not add up; ";
    return wrong;
}

}  // namespace vramkit::pool
