// Opening and closing a pool, its settings and its statistics.
#include <algorithm>
#include <string>
#include <utility>

#include "pool/pool.h"
#include "pool/report/free_memory.h"

namespace vramkit::pool {

Pool::Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, std::uint64_t card_bytes)
    : id_(next_listener_id()),
      parts_(id_, std::move(driver), device, context, card_bytes),
      maintenance_(parts_, lock_, closed_) {
    checked_ = parts_.card.checker.listens();
}

std::shared_ptr<Pool> Pool::open(std::shared_ptr<Driver> driver, int device, CUcontext context,
                                 const Config& config, Failure& why) {
    if (!is_valid(config, why)) return nullptr;
    if (config.nvtx && config.limit == 0) {
        why = Failure::bad_value(
            "nvtx needs a limit: compute-sanitizer knows sub-allocations only in memory of "
            "cuMemAlloc, which the pool then takes at once");
        return nullptr;
    }
    size_t card = 0;
    if (failed(driver->call().cuDeviceTotalMem_v2(&card, device), "cuDeviceTotalMem_v2", why)) {
        return nullptr;
    }
    // In a forked child the pool is never deleted: its thread does not exist there, its locks may
    // be held by threads that do not exist either, and the driver is the parent's.
    std::shared_ptr<Pool> pool(new Pool(std::move(driver), device, context, card), [](Pool* one) {
        if (!one->forked()) delete one;
    });
    const SlowPathScope scope = pool->parts_.card.enter();
    DeviceMemory& memory = pool->parts_.memory;
    if (!memory.open(config, why)) return nullptr;
    pool->nvtx_ = memory.nvtx();
    pool->page_map_ = &memory.page_map();
    pool->put_in_force(config);
    if (config.background) {
        // The first requests find memory mapped. If unused, it goes back after its decay time,
        // which this first step starts.
        memory.want_ahead(true);
        pool->step();
    }
    // From here on other threads may announce streams to it.
    add_listener(pool->id_, *pool);
    return pool;
}

Pool::~Pool() {
    remove_listener(id_);
    maintenance_.stop();
    if (parts_.card.forgotten) return;
    const SlowPathScope scope = parts_.card.enter();
    if (!parts_.memory.is_open()) {  // host memory ran out while it was made
        parts_.memory.close();
        return;
    }
    // Live blocks go too: nobody can free them any more.
    if (parts_.memory.in_use() > 0 && !parts_.streams.device_sync().wait()) {
        // Work may still run, and the wait failed: the memory stays until the context ends.
        forget_driver();
        return;
    }
    parts_.direct.give_everything_back();
    parts_.streams.device_sync().give_back();
    parts_.threads.clear();
    parts_.streams.clear();
    parts_.memory.give_everything_back();
}

// With the pool's lock, or before other threads know the pool.
void Pool::put_in_force(const Config& config) {
    const Config& before = parts_.config;
    if (class_maps_.empty() || config.size_classes != before.size_classes ||
        config.alignment != before.alignment) {
        class_maps_.push_back(std::make_unique<ClassMap>(config.size_classes, config.alignment));
        class_map_.store(class_maps_.back().get(), std::memory_order_release);
    }
    maintenance_.configure(config);
    parts_.memory.configure(config);
    parts_.threads.configure(config);
    stats_on_.store(config.enable_stats, std::memory_order_relaxed);
    direct_on_.store(config.large == Large::direct, std::memory_order_relaxed);
    parts_.config = config;
}

Config Pool::config() const {
    const std::lock_guard guard(lock_);
    return parts_.config;
}

bool Pool::configure(const Config& config, Failure& why) {
    if (!is_valid(config, why)) return false;
    const std::lock_guard guard(lock_);
    if (!is_open(why)) return false;
    const bool background = config.background != parts_.config.background;
    if (background || config.nvtx != parts_.config.nvtx) {
        why = Failure::bad_value(std::string(background ? "background" : "nvtx") +
                                 " is decided when the pool is made");
        return false;
    }
    if (config.nvtx && config.limit != parts_.config.limit) {
        why = Failure::bad_value("limit is decided when the pool is made with nvtx");
        return false;
    }
    put_in_force(config);
    return true;
}

bool Pool::preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why) {
    if (bytes == 0 || bytes > kLargestRequest || count == 0) {
        why = Failure::bad_value("preallocate takes blocks of 1 to " +
                                 std::to_string(kLargestRequest) + " bytes, and at least one");
        return false;
    }
    const std::lock_guard guard(lock_);
    if (!is_open(why)) return false;
    const SlowPathScope scope = parts_.card.enter();
    const ClassMap& classes = *class_map_.load(std::memory_order_relaxed);
    const ClassIndex index = classes.of(bytes);
    const std::uint64_t block_bytes = classes.block_bytes(index, bytes);
    // A request for more than there is takes nothing, instead of all memory before it fails.
    size_t free = 0, total = 0;
    if (failed(parts_.card.call.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo_v2", why)) {
        return false;
    }
    if (count > parts_.memory.could_have(index, block_bytes, free)) {
        why = Failure::out_of_memory();
        why.message = std::to_string(count) + " blocks: " + explain(bytes, why);
        return false;
    }
    const bool done = parts_.memory.preallocate(index, block_bytes, count, why);
    maintenance_.notice();
    if (!done && why.message.empty()) why.message = explain(bytes, why);
    return done;
}

std::uint64_t Pool::defragment(Failure& why) {
    const std::lock_guard guard(lock_);
    if (!is_open(why)) return 0;
    const SlowPathScope scope = parts_.card.enter();
    parts_.threads.drain_all();
    parts_.collect();
    const std::uint64_t moved = parts_.memory.join_idle(why);
    parts_.memory.unmap_all_old();
    return moved;
}

std::uint64_t Pool::trim(bool wait) {
    std::unique_lock guard(lock_);
    if (parts_.card.forgotten) return 0;
    const SlowPathScope scope = parts_.card.enter();
    std::uint64_t released = wait ? parts_.direct.free_ended(guard) : 0;
    released += give_back(guard, wait);
    if (parts_.card.forgotten) return released;
    parts_.streams.events().drop();
    parts_.memory.want_ahead(false);  // memory just given back is not mapped ahead again
    return released;
}

// Gives back free memory whose work is done; wait: all free memory. Blocks with a fence go first,
// since the device sync itself needs a page. All waits are made without the lock.
std::uint64_t Pool::give_back(std::unique_lock<BriefMutex>& guard, bool wait) {
    std::uint64_t released = 0;
    const auto give = [&] {
        if (parts_.card.forgotten) return;
        parts_.threads.drain_all();
        parts_.collect();
        released += parts_.memory.release_idle(DeviceMemory::kAnyTime);
    };
    if (wait) {
        parts_.threads.drain_all();
        parts_.wait(guard);
    }
    give();
    if (!wait || parts_.card.forgotten) return released;
    const std::uint64_t begun = parts_.held.begin_card_wait();
    const bool for_held = parts_.held.bytes_awaiting_card() > 0;
    if (!parts_.streams.wait_for_unfenced(guard, for_held)) return released;
    if (parts_.card.forgotten) return released;
    parts_.held.end_card_wait(begun);
    // Released blocks are in their stream caches now: wait for those too.
    if (parts_.held.release()) return released + give_back(guard, true);
    give();
    return released;
}

void Pool::stream_closing(std::uint64_t id, CUstream handle) {
    const std::lock_guard guard(lock_);
    parts_.streams.handle_closing(handle);
    const std::optional<std::uint32_t> number = parts_.streams.find(id);
    if (closed() || !number) return;
    const SlowPathScope scope = parts_.card.enter();
    parts_.threads.end_stream(*number);
    parts_.threads.drop_ended();
}

void Pool::cache_ending(ThreadCache* cache) {
    const std::lock_guard guard(lock_);
    std::optional<SlowPathScope> scope;
    if (!parts_.card.forgotten) scope.emplace(parts_.card.call, parts_.card.context);
    parts_.threads.retire(cache);
}

bool Pool::close(Failure& why) {
    const std::lock_guard closing(closing_);  // whoever comes second finds it done
    {
        std::unique_lock guard(lock_);
        if (closed()) return true;
        parts_.direct.free_ended(guard);
        if (const std::int64_t live = parts_.threads.usage.live(); live > 0) {
            why = Failure::bad_value("the pool cannot close: " + std::to_string(live) +
                                     " bytes are still in use");
            return false;
        }
        // Every request fails from here on, although waits release the lock.
        closed_.store(true, std::memory_order_release);
        const SlowPathScope scope = parts_.card.enter();
        try {
            give_back(guard, true);
        } catch (...) {
            // Without host memory: it is open as before, and can be closed later.
            if (!guard.owns_lock()) guard.lock();
            if (!parts_.card.forgotten) closed_.store(false, std::memory_order_release);
            throw;
        }
        if (!parts_.card.forgotten) {
            parts_.streams.events().drop();
            // What the driver refused to take back, and blocks of graphs, are tried again in the
            // destructor.
            parts_.memory.close();
        }
    }
    maintenance_.stop();
    return true;
}

void Pool::driver_reset() {
    {
        const std::lock_guard guard(lock_);
        parts_.card.forgotten = true;
        closed_.store(true, std::memory_order_release);
        forget_driver();
        // No address from before the reset is handed out again.
        parts_.threads.drop_blocks();
        parts_.streams.drop_blocks();
        if (nvtx_ != nullptr) nvtx_->clear();
    }
    maintenance_.stop();
}

void Pool::forget_driver() {
    parts_.streams.forget_driver();
    parts_.direct.forget_driver();
    parts_.memory.forget_driver();
}

Layout Pool::layout() const {
    const std::lock_guard guard(lock_);
    return layout_of(parts_);
}

std::string Pool::check_invariants() const {
    const std::lock_guard guard(lock_);
    return pool::check_invariants(parts_);
}

Stats Pool::stats() {
    const std::lock_guard guard(lock_);
    const DeviceMemory& memory = parts_.memory;
    const Counters now = parts_.threads.counters();
    Stats stats = parts_.counters;
    stats.total_allocated = now.allocated_bytes - before_.allocated_bytes;
    stats.total_freed = now.freed_bytes - before_.freed_bytes;
    stats.allocation_count = now.allocations - before_.allocations;
    stats.free_count = now.frees - before_.frees;
    stats.cache_hits = now.hits - before_.hits;
    stats.large_blocks = memory.ranges().not_idle() + parts_.direct.count();
    parts_.streams.each_cache([&](StreamCache& cache) {
        const std::lock_guard stream_guard(cache.lock);
        stats.stream_cache_hits += cache.hits;
        stats.events_recorded += cache.recorded;
        stats.captures += cache.stream.capture != 0;
    });
    stats.cache_misses = stats.stream_cache_hits + stats.idle_hits + stats.cross_stream_hits +
                         stats.gpu_wait_hits + stats.remap_hits + stats.growth_hits +
                         stats.direct_hits;
    stats.current_usage = static_cast<std::uint64_t>(parts_.threads.usage.live());
    stats.peak_usage = static_cast<std::uint64_t>(parts_.threads.usage.peak());
    stats.reserved = memory.reserved();
    stats.peak_reserved = memory.peak_reserved();
    const FreeMemory free = free_memory(parts_, maintenance_.largest_asked_for());
    stats.cached = free.cached;
    stats.waiting = free.stream_cached;
    stats.idle = free.idle();
    stats.fragmentation_bytes = free.unusable;
    stats.fragmentation_rate = free.rate(memory.mapped());
    stats.pieces = memory.pieces().count();
    stats.segments = memory.pieces().segments();
    stats.slabs = memory.slabs().all().size();
    return stats;
}

void Pool::reset_stats() {
    const std::lock_guard guard(lock_);
    before_ = parts_.threads.counters();
    parts_.counters = {};
    parts_.streams.each_cache([](StreamCache& cache) {
        const std::lock_guard stream_guard(cache.lock);
        cache.hits = cache.recorded = 0;
    });
    parts_.threads.usage.reset_peak();
    parts_.memory.reset_peak();
}

void Pool::reset_peaks() {
    const std::lock_guard guard(lock_);
    parts_.threads.usage.reset_peak();
    parts_.memory.reset_peak();
}

std::uint64_t Pool::live_bytes() const {
    return static_cast<std::uint64_t>(parts_.threads.usage.live());
}

std::uint64_t Pool::reserved_bytes() const {
    const std::lock_guard guard(lock_);
    return parts_.memory.reserved();
}

}  // namespace vramkit::pool
