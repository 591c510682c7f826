// Decay, defragmentation, and memory mapped ahead of need.
#include "pool/maintenance/maintenance.h"

#include <algorithm>
#include <utility>

#include "pool/report/free_memory.h"

namespace vramkit::pool {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSoon = 2 * kMillisecond;
constexpr std::int64_t kSeldom = 60'000 * kMillisecond;

}  // namespace

bool Maintenance::step() {
    std::unique_lock guard(lock_);
    parts_.direct.free_ended(guard);
    if (closed_.load(std::memory_order_acquire)) return false;
    const SlowPathScope scope = parts_.card.enter();
    const Config& config = parts_.config;
    const std::int64_t time = parts_.card.now();
    parts_.threads.drop_ended();
    parts_.held.release();
    const std::int64_t half_decay = static_cast<std::int64_t>(config.decay_ms) * kMillisecond / 2;
    if (config.decay_ms > 0 && time >= next_decay_) {
        decay();
        next_decay_ = time + half_decay;
    }
    bool more = collect_leaving();
    if (config.decay_ms > 0) parts_.memory.release_some(time - half_decay, more);
    if (time >= next_defrag_) {
        largest_before_ = parts_.threads.reset_largest();
        const double rate = free_memory(parts_, largest_asked_for()).rate(parts_.memory.mapped());
        if (config.enable_defrag && rate > config.defrag_threshold) {
            Failure why;
            parts_.memory.join_idle(why);
        }
        next_defrag_ = time + static_cast<std::int64_t>(config.defrag_interval_ms) * kMillisecond;
    }
    parts_.memory.map_ahead();
    notice();
    return !parts_.memory.unmap_old() || more;
}

void Maintenance::notice() {
    const bool grown = parts_.memory.take_grown(), wanted = parts_.memory.take_step_wanted();
    if (!parts_.config.background) return;
    if (wanted) {
        thread_.wake();
    } else if (grown) {
        thread_.start();
    }
}

void Maintenance::configure(const Config& config) {
    if (config.decay_ms != parts_.config.decay_ms) next_decay_ = 0;
    if (config.defrag_interval_ms != parts_.config.defrag_interval_ms) next_defrag_ = 0;
    if (config.background && parts_.memory.is_open() && parts_.memory.mapped() > 0) thread_.wake();
}

std::uint64_t Maintenance::largest_asked_for() const {
    return std::max(largest_before_, parts_.threads.largest_asked_for());
}

// Blocks that were not needed since the last decay, half a decay time ago: those of thread caches
// go to the stream caches, those of stream caches become idle when their work is done.
void Maintenance::decay() {
    parts_.threads.decay();
    for (const auto& cache : parts_.streams.caches()) {
        const std::lock_guard guard(cache->lock);
        bool any = false;
        for (StreamCache::Bin& bin : cache->bins) {
            // The oldest leave, although those of the threads came last: only the count matters.
            bin.leaving =
                std::min(bin.blocks.size(), std::max(bin.leaving, bin.low) + bin.unneeded);
            bin.unneeded = 0;
            bin.low = bin.blocks.size();
            any |= bin.leaving > 0;
        }
        // Apart from the others: joined with what is freed later, they would wait for that too.
        cache->ranges.move_to(cache->leaving,
                              cache->ranges.low() + std::exchange(cache->ranges_unneeded, 0));
        cache->ranges.reset_low();
        if (any || !cache->leaving.empty()) cache->record_fence();
    }
}

// True: some blocks still wait for their fences.
bool Maintenance::collect_leaving() {
    bool awaited = false;
    for (const auto& each : parts_.streams.caches()) {
        StreamCache& cache = *each;
        const std::lock_guard guard(cache.lock);
        const auto leaves = [](const StreamCache::Bin& bin) { return bin.leaving > 0; };
        if (cache.leaving.empty() && std::none_of(cache.bins.begin(), cache.bins.end(), leaves)) {
            continue;
        }
        cache.fences.poll();
        parts_.streams.collect(cache, cache.leaving);
        awaited |= !cache.leaving.empty() && cache.can_record_fence();
        for (ClassIndex index = 0; index < kFirstRange; ++index) {
            if (!leaves(cache.bins[index])) continue;
            parts_.streams.collect(cache, index, cache.bins[index].leaving);
            awaited |= leaves(cache.bins[index]) && cache.can_record_fence();
        }
    }
    return awaited;
}

// The function of the background thread: one step, and the time until the next.
std::int64_t Maintenance::work() {
    if (fork_.forked()) return kSeldom;
    if (step()) return kSoon;
    const std::lock_guard guard(lock_);
    if (closed_.load(std::memory_order_acquire)) return kSeldom;
    std::uint64_t pause = parts_.config.defrag_interval_ms;
    if (parts_.config.decay_ms > 0) pause = std::min(pause, parts_.config.decay_ms / 2);
    return std::clamp(static_cast<std::int64_t>(pause) * kMillisecond, kSoon, kSeldom);
}

}  // namespace vramkit::pool
