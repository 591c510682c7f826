// The pool's beginning and end.
#include "base/scopes.h"
#include "pool/pool.h"
#include "pool/threads/threads.h"

namespace vramkit::pool {

Pool::Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, std::uint64_t card_bytes,
           const Config& config)
    : id_(next_listener_id()),
      driver_(std::move(driver)),
      call_(driver_->call()),
      device_(device),
      context_(context),
      checker_(*driver_),
      card_bytes_(card_bytes),
      events_(call_),
      device_sync_(call_, checker_),
      background_thread_([this] { return maintain(); }) {
    driver_clock_ = reinterpret_cast<double (*)()>(driver_->symbol("simNow"));
    put_in_force(config);
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
    if (const CUresult result = driver->call().cuDeviceTotalMem_v2(&card, device);
        result != CUDA_SUCCESS) {
        why = Failure::of_driver(result, "cuDeviceTotalMem_v2");
        return nullptr;
    }
    // In a forked child the pool stays for ever: its thread is not there, its locks may be held by
    // threads that are not, and the driver is the parent's.
    std::shared_ptr<Pool> pool(new Pool(std::move(driver), device, context, card, config),
                               [](Pool* one) {
                                   if (!one->forked()) delete one;
                               });
    const SlowPathScope scope(pool->call_, context);
    pool->addresses_ = config.nvtx
                           ? Addresses::allocate(pool->call_, round_up(config.limit, kPage), why)
                           : Addresses::reserve(pool->call_, card, why);
    if (pool->addresses_ == nullptr) {
        if (config.nvtx && why.kind == Failure::Kind::out_of_memory) {
            why.message = "nvtx takes the limit of " + std::to_string(config.limit) +
                          " bytes at once, and the card has not as much free: lower the limit";
        }
        return nullptr;
    }
    pool->page_map_ = PageMap::over(pool->addresses_->base(), pool->addresses_->bytes());
    if (pool->page_map_ == nullptr) {
        why = Failure::bad_value("no host memory for the pool's table of addresses");
        return nullptr;
    }
    pool->checker_.region(pool->addresses_->base(), pool->addresses_->bytes());
    if (config.nvtx) {
        pool->nvtx_ =
            NvtxMarks::make(pool->addresses_->allocation(), pool->addresses_->allocation_bytes());
    }
    pool->large_ = std::make_unique<LargeBlocks>(*pool->page_map_);
    pool->slabs_ = std::make_unique<Slabs>(*pool->page_map_, pool->records_);
    // Last: a pool that has them is whole, and ends as one.
    pool->extents_ = std::make_unique<Extents>(pool->call_, device, *pool->addresses_);
    pool->extents_->set_handle_bytes(pool->handle_bytes());
    if (config.background) {
        // The first requests find it mapped; unused it goes back with time, which begins here.
        pool->segment_wanted_ = true;
        pool->step();
    }
    // From here on other threads may tell it of streams.
    add_listener(pool->id_, *pool);
    return pool;
}

Pool::~Pool() {
    remove_listener(id_);
    background_thread_.stop();
    if (addresses_ == nullptr || abandoned_) return;
    const SlowPathScope scope(call_, context_);
    if (extents_ == nullptr) {  // host memory ran out while it was made
        give_addresses_back();
        return;
    }
    // Whatever is still live goes too: nobody can free it any more.
    if (extents_->handed_out() > 0 && !device_sync_.wait()) {
        // Work may be under way, and there is no waiting for it: its memory ends with the context.
        forget_driver();
        return;
    }
    for (const auto& [address, block] : direct_.all()) call_.cuMemFree_v2(address);
    device_sync_.give_back();
    streams_.clear();
    captures_.clear();
    stream_caches_.clear();
    arenas_.clear();
    caches_.clear();
    events_.drop();
    extents_ = nullptr;
    give_addresses_back();
}

std::uint64_t Pool::trim(bool wait) {
    std::uint64_t released = wait ? free_ended_direct() : 0;
    const std::lock_guard guard(lock_);
    if (abandoned_) return 0;
    const SlowPathScope scope(call_, context_);
    reclaim_caches();
    released += give_back(wait);
    events_.drop();
    segment_wanted_ = false;  // who gives memory back wants none mapped ahead
    return released;
}

// What is done; wait: all of it. What has a fence goes first: the wait for the card takes a page.
std::uint64_t Pool::give_back(bool wait) {
    collect_all(wait ? Wait::for_streams : Wait::no);
    free_segments(true);
    std::uint64_t released = release_idle(Extents::kAnyTime);
    if (wait && pass_unfenced()) {
        // What was held is on its stream cache now, and goes the way of the others.
        released += give_back(release_held(false));
    }
    return released;
}

bool Pool::close(Failure& why) {
    free_ended_direct();
    {
        const std::lock_guard guard(lock_);
        if (closed()) return true;
        if (const std::int64_t live = usage_.live(); live > 0) {
            why = Failure::bad_value("the pool cannot close: " + std::to_string(live) +
                                     " bytes are still in use");
            return false;
        }
        const SlowPathScope scope(call_, context_);
        reclaim_caches();
        give_back(true);
        events_.drop();
        closed_.store(true, std::memory_order_release);
        // What the driver refused to take, and what is a graph's, is tried again at the end of the
        // pool.
        if (extents_->mapped() == 0) {
            page_map_->shut();
            give_addresses_back();
        }
    }
    background_thread_.stop();
    return true;
}

void Pool::driver_reset() {
    {
        const std::lock_guard guard(lock_);
        abandoned_ = true;
        closed_.store(true, std::memory_order_release);
        forget_driver();
        forget_blocks();
        if (nvtx_ != nullptr) nvtx_->clear();
    }
    background_thread_.stop();
}

// Nobody gets an address of before.
void Pool::forget_blocks() {
    for (const auto& cache : caches_) {
        const ThreadCache::Visited visited(*cache);
        for (ThreadCache::Bin& bin : cache->bins) bin = {};
        cache->bytes = 0;
    }
    for (const auto* list : {&stream_caches_, &arenas_}) {
        for (const auto& stream_cache : *list) {
            const std::lock_guard guard(stream_cache->lock);
            for (ClassIndex index = 0; index < kClasses; ++index) {
                while (stream_cache->take_newest(index).slab != nullptr) {
                }
            }
        }
    }
}

void Pool::give_addresses_back() {
    if (nvtx_ != nullptr) nvtx_->clear();  // a tool has no heap in memory that is gone
    addresses_->release();
}

void Pool::forget_driver() {
    for (const auto* list : {&stream_caches_, &arenas_}) {
        for (const auto& stream_cache : *list) stream_cache->fences.forget();
    }
    events_.forget();
    device_sync_.forget();
    direct_.clear();
    extents_->forget();
    page_map_->shut();
    addresses_->forget();
}

}  // namespace vramkit::pool
