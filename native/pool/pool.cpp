// The hot paths, and the way from a thread's cache to the global level and back.
#include "pool/pool.h"

#include <algorithm>

#include "pool/scopes.h"
#include "pool/threads.h"

namespace vramkit::pool {
namespace {

// Live bytes that a cache may keep to itself before it tells the pool: bounds the error of the
// peak.
constexpr std::int64_t kUnreportedBytes = 64 * 1024;

bool fail(Failure& why, Failure::Kind kind, std::string message) {
    why.kind = kind;
    why.message = std::move(message);
    return false;
}

}  // namespace

Pool::Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, const Config& config)
    : id_(next_pool_id()),
      driver_(std::move(driver)),
      call_(driver_->call()),
      device_(device),
      context_(context),
      fork_count_(fork_count()),
      cache_blocks_(config.thread_cache_max_blocks),
      cache_bytes_(config.cache_bytes),
      classes_(config.classes),
      stats_on_(config.enable_stats),
      config_(config),
      events_(call_),
      bins_(kClasses) {
    block_allocated_ =
        reinterpret_cast<decltype(block_allocated_)>(driver_->symbol("simBlockAlloc"));
    block_freed_ = reinterpret_cast<decltype(block_freed_)>(driver_->symbol("simBlockFree"));
}

std::shared_ptr<Pool> Pool::open(std::shared_ptr<Driver> driver, int device, CUcontext context,
                                 const Config& config, Failure& why) {
    std::shared_ptr<Pool> pool(new Pool(std::move(driver), device, context, config));
    const SlowPathScope scope(pool->call_, context);
    size_t card = 0;
    if (const CUresult result = pool->call_.cuDeviceTotalMem_v2(&card, device);
        result != CUDA_SUCCESS) {
        why = {Failure::Kind::driver, result, "cuDeviceTotalMem_v2", ""};
        return nullptr;
    }
    pool->card_bytes_ = card;
    pool->range_ = Range::reserve(pool->call_, device, card, why);
    if (pool->range_ == nullptr) return nullptr;
    // From here on other threads may tell it of streams.
    register_pool(pool->id_, *pool);
    return pool;
}

Pool::~Pool() {
    unregister_pool(id_);
    if (range_ == nullptr || abandoned_) return;
    if (forked()) {
        // The driver is the parent's: not one call.
        forget_driver();
        return;
    }
    // Whatever is still live goes too: nobody can free it any more.
    const SlowPathScope scope(call_, context_);
    if (!chunks_.empty()) call_.cuCtxSynchronize();
    for (const auto& [address, chunk] : chunks_) range_->unmap(*chunk);
    bins_.clear();
    streams_.clear();
    events_.drop();
}

bool Pool::forked() const { return fork_count_ != fork_count(); }

Cache* Pool::cache_of(StreamRef stream, Failure& why) {
    if (Cache* cache = find_cache(id_, stream.id)) return cache;
    forget_gone_pools();
    const std::lock_guard guard(lock_);
    const std::optional<std::uint32_t> number = number_of(stream, why);
    return number ? make_cache(*number) : nullptr;
}

Cache* Pool::cache_of(std::uint32_t number, Failure& why) {
    if (Cache* cache = find_cache_by_number(id_, number)) return cache;
    forget_gone_pools();
    const std::lock_guard guard(lock_);
    if (closed()) {
        fail(why, Failure::Kind::closed, "the pool is closed");
        return nullptr;
    }
    return make_cache(number);
}

std::optional<std::uint32_t> Pool::number_of(StreamRef stream, Failure& why) {
    if (closed()) {
        fail(why, Failure::Kind::closed, "the pool is closed");
        return {};
    }
    if (const auto known = stream_numbers_.find(stream.id); known != stream_numbers_.end()) {
        // First seen as a raw handle, perhaps, and now as a stream of ours.
        streams_[known->second].ref.told |= stream.told;
        return known->second;
    }
    const SlowPathScope scope(call_, context_);
    CUcontext context = nullptr;
    if (const CUresult result = call_.cuStreamGetCtx(stream.handle, &context);
        result != CUDA_SUCCESS) {
        why = {Failure::Kind::driver, result, "cuStreamGetCtx", ""};
        return {};
    }
    if (context != context_) {
        fail(why, Failure::Kind::bad_value, "the stream is of another context than the pool");
        return {};
    }
    const auto number = static_cast<std::uint32_t>(streams_.size());
    if (number == Block::kMostStreams) {
        fail(why, Failure::Kind::bad_value, "the pool has seen too many streams (16,777,216)");
        return {};
    }
    stream_numbers_.emplace(stream.id, number);
    streams_.push_back({stream, false, nullptr});
    return number;
}

// A thread that works with ever new streams keeps caches only of those that live.
Cache* Pool::make_cache(std::uint32_t number) {
    // The checker of a simulated GPU listens to threads with a context.
    const SlowPathScope scope(call_, context_);
    for (Cache* ended : forget_ended_caches(id_)) retire(ended);
    caches_.push_back(std::make_unique<Cache>());
    Cache* cache = caches_.back().get();
    cache->number = number;
    cache->stream = streams_[number].ref;
    cache->ended = streams_[number].ended;
    remember_cache(id_, cache);
    return cache;
}

// No lock, no driver call.
std::uint64_t Pool::malloc_cached(std::uint64_t bytes, StreamRef stream) {
    if (bytes - 1 >= kLargestRequest || forked()) return 0;
    Cache* cache = find_cache(id_, stream.id);
    if (cache == nullptr) return 0;
    const ClassIndex index = class_of(bytes, classes_.load(std::memory_order_relaxed));
    cache->take_for_sure();
    auto& bin = cache->bins[index];
    std::uint64_t address = 0;
    if (!bin.empty()) {
        const BlockRef block = bin.back();
        bin.pop_back();
        cache->bytes -= block.chunk->block_bytes;
        address = hand_out(*cache, block, bytes, stream, true);
    }
    cache->leave();
    return address;
}

std::uint64_t Pool::malloc(std::uint64_t bytes, StreamRef stream, bool may_wait, Failure& why) {
    if (const std::uint64_t address = malloc_cached(bytes, stream); address != 0) return address;
    if (bytes == 0 || bytes > kLargestRequest) {
        fail(why, Failure::Kind::bad_value,
             "a block has 1 to " + std::to_string(kLargestRequest) + " bytes; asked for were " +
                 std::to_string(bytes));
        return 0;
    }
    if (forked()) {
        fail(why, Failure::Kind::forked, "the pool belongs to the parent process: a fork has none");
        return 0;
    }
    Cache* cache = cache_of(stream, why);
    if (cache == nullptr) return 0;
    const ClassIndex index = class_of(bytes, classes_.load(std::memory_order_relaxed));
    return malloc_slow(*cache, index, bytes, stream, may_wait, why);
}

// With the cache's owner word.
std::uint64_t Pool::hand_out(Cache& cache, BlockRef block, std::uint64_t bytes, StreamRef stream,
                             bool hit) {
    const std::uint64_t address = block.address();
    const bool large = block.chunk->count == 1 && block.chunk->block_bytes >= kPage;
    if (large) block.chunk->asked = bytes;
    block.block().set(State::live, cache.number, large ? 0 : static_cast<std::uint32_t>(bytes));
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.allocations;
        cache.counters.allocated_bytes += bytes;
        ++(hit ? cache.counters.hits : cache.counters.misses);
    }
    cache.unreported += static_cast<std::int64_t>(bytes);
    if (cache.unreported >= kUnreportedBytes) report_live(cache);
    if (block_allocated_ != nullptr) block_allocated_(address, bytes, stream.handle);
    return address;
}

void Pool::report_live(Cache& cache) {
    const std::int64_t live =
        live_bytes_.fetch_add(cache.unreported, std::memory_order_relaxed) + cache.unreported;
    cache.unreported = 0;
    std::int64_t peak = peak_bytes_.load(std::memory_order_relaxed);
    while (live > peak &&
           !peak_bytes_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
}

bool Pool::free(std::uint64_t address, std::optional<std::uint64_t> bytes,
                std::optional<StreamRef> stream, Failure& why) {
    Full full;
    Freed freed = free_cached(address, bytes, stream, why, full);
    if (freed == Freed::no_cache) {
        const Chunk& chunk = *range_->chunk_of(address);
        const Block& block = chunk.blocks[(address - chunk.address) / chunk.block_bytes];
        const Cache* made = stream ? cache_of(*stream, why) : cache_of(block.stream(), why);
        if (made == nullptr) return false;
        freed = free_cached(address, bytes, stream, why, full);
    }
    if (full.cache != nullptr) spill(full);
    return freed == Freed::yes;
}

Pool::Freed Pool::free_cached(std::uint64_t address, std::optional<std::uint64_t> given_bytes,
                              std::optional<StreamRef> given_stream, Failure& why, Full& full) {
    const auto refuse = [&](Failure::Kind kind, std::string message) {
        fail(why, kind, std::move(message));
        return Freed::refused;
    };
    if (forked()) {
        return refuse(Failure::Kind::forked,
                      "the pool belongs to the parent process: a fork has none");
    }
    Chunk* chunk = range_->chunk_of(address);
    const std::uint64_t inside = chunk == nullptr ? 0 : address - chunk->address;
    if (chunk == nullptr || inside / chunk->block_bytes >= chunk->count) {
        if (closed()) return refuse(Failure::Kind::closed, "the pool is closed");
        return refuse(Failure::Kind::bad_value, "the pointer is not of this pool");
    }
    if (inside % chunk->block_bytes != 0) {
        return refuse(Failure::Kind::bad_value,
                      "the pointer lies inside a block; free takes the one that malloc returned");
    }
    const BlockRef ref{chunk, static_cast<std::uint32_t>(inside / chunk->block_bytes)};
    Block& block = ref.block();
    if (block.state() != State::live) {
        return refuse(Failure::Kind::bad_value, "the block is not in use: freed twice?");
    }
    const bool large = chunk->count == 1 && chunk->block_bytes >= kPage;
    const std::uint64_t bytes = large ? chunk->asked : block.bytes();
    if (given_bytes && *given_bytes != bytes) {
        return refuse(Failure::Kind::bad_value, "the block has " + std::to_string(bytes) +
                                                    " bytes, not " + std::to_string(*given_bytes));
    }
    // Without a stream it is that of the allocation, of which this thread mostly has a cache.
    Cache* cache = given_stream ? find_cache(id_, given_stream->id)
                                : find_cache_by_number(id_, block.stream());
    if (cache == nullptr) return Freed::no_cache;
    if (!block.take_from_user()) {
        return refuse(Failure::Kind::bad_value, "the block is not in use: freed twice?");
    }

    cache->take_for_sure();
    if (block_freed_ != nullptr) tell_checker_of_free(*cache, address, bytes);
    auto& bin = cache->bins[chunk->index];
    bin.push_back(ref);
    cache->bytes += chunk->block_bytes;
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache->counters.frees;
        cache->counters.freed_bytes += bytes;
    }
    cache->unreported -= static_cast<std::int64_t>(bytes);
    if (cache->unreported <= -kUnreportedBytes) report_live(*cache);
    if (bin.size() > cache_blocks_.load(std::memory_order_relaxed) ||
        cache->bytes > cache_bytes_.load(std::memory_order_relaxed) || cache->ended) {
        full = {cache, chunk->index};
    }
    cache->leave();
    return Freed::yes;
}

// Of a stream that is no more, and of another thread's default stream, there is no telling: both
// go by handles that mean another stream by now.
void Pool::tell_checker_of_free(const Cache& cache, std::uint64_t address, std::uint64_t bytes) {
    if (!cache.ended && names_its_stream(cache.stream)) {
        block_freed_(address, bytes, cache.stream.handle);
    }
}

// The handle of the per-thread default stream means another stream on every thread.
bool Pool::names_its_stream(const StreamRef& stream) const {
    if (stream.handle != VRAMKIT_STREAM_PER_THREAD) return true;
    unsigned long long id = 0;
    return call_.cuStreamGetId(stream.handle, &id) == CUDA_SUCCESS && id == stream.id;
}

}  // namespace vramkit::pool
