// The hot paths, and the way from a thread's cache to the global level and back.
#include "pool/pool.h"

#include <pthread.h>

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
    : id_(register_pool(*this)),
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
    pool->range_ = Range::reserve(pool->call_, device, card, why);
    return pool->range_ != nullptr ? pool : nullptr;
}

Pool::~Pool() {
    unregister_pool(id_);
    if (fork_count_ != fork_count() || range_ == nullptr || abandoned_) return;
    // Whatever is still live goes too: nobody can free it any more.
    const SlowPathScope scope(call_, context_);
    for (Bin& bin : bins_) {
        for (Batch& batch : bin.batches) {
            if (batch.mark != nullptr) batch.mark->wait();
        }
    }
    if (!chunks_.empty()) call_.cuCtxSynchronize();
    for (const auto& [address, chunk] : chunks_) range_->unmap(*chunk);
}

Cache* Pool::cache_of(StreamRef stream, Failure& why) {
    if (Cache* cache = find_cache(id_, stream.id)) return cache;
    return make_cache(stream, why);
}

Cache* Pool::make_cache(StreamRef stream, Failure& why) {
    const std::lock_guard guard(lock_);
    if (closed()) {
        fail(why, Failure::Kind::closed, "the pool is closed");
        return nullptr;
    }
    const auto [entry, added] =
        stream_numbers_.try_emplace(stream.id, static_cast<std::uint32_t>(streams_.size()));
    if (added) {
        if (streams_.size() == Block::kMostStreams) {
            stream_numbers_.erase(entry);
            fail(why, Failure::Kind::bad_value, "the pool has seen too many streams (16,777,216)");
            return nullptr;
        }
        streams_.push_back(stream);
    }
    caches_.push_back(std::make_unique<Cache>());
    Cache* cache = caches_.back().get();
    cache->number = entry->second;
    cache->stream = stream;
    remember_cache(id_, cache);
    return cache;
}

// No lock, no driver call.
std::uint64_t Pool::malloc_cached(std::uint64_t bytes, StreamRef stream) {
    if (bytes - 1 >= kLargestRequest || fork_count_ != fork_count()) return 0;
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
    if (fork_count_ != fork_count()) {
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
    if (!free_cached(address, bytes, stream, why, full)) return false;
    if (full.cache != nullptr) spill(full);
    return true;
}

bool Pool::free_cached(std::uint64_t address, std::optional<std::uint64_t> given_bytes,
                       std::optional<StreamRef> given_stream, Failure& why, Full& full) {
    if (fork_count_ != fork_count()) {
        return fail(why, Failure::Kind::forked,
                    "the pool belongs to the parent process: a fork has none");
    }
    Chunk* chunk = range_->chunk_of(address);
    const std::uint64_t inside = chunk == nullptr ? 0 : address - chunk->address;
    if (chunk == nullptr || inside / chunk->block_bytes >= chunk->count) {
        return fail(why, Failure::Kind::bad_value, "the pointer is not of this pool");
    }
    if (inside % chunk->block_bytes != 0) {
        return fail(why, Failure::Kind::bad_value,
                    "the pointer lies inside a block; free takes the one that malloc returned");
    }
    const BlockRef ref{chunk, static_cast<std::uint32_t>(inside / chunk->block_bytes)};
    Block& block = ref.block();
    if (block.state() != State::live) {
        return fail(why, Failure::Kind::bad_value, "the block is not in use: freed twice?");
    }
    const bool large = chunk->count == 1 && chunk->block_bytes >= kPage;
    const std::uint64_t bytes = large ? chunk->asked : block.bytes();
    if (given_bytes && *given_bytes != bytes) {
        return fail(why, Failure::Kind::bad_value,
                    "the block has " + std::to_string(bytes) + " bytes, not " +
                        std::to_string(*given_bytes));
    }
    // Without a stream it is that of the allocation, of which this thread mostly has a cache.
    Cache* cache =
        given_stream ? cache_of(*given_stream, why) : find_cache_by_number(id_, block.stream());
    if (cache == nullptr && !given_stream) cache = make_cache(stream_of(block), why);
    if (cache == nullptr) return false;
    if (!block.take_from_user()) {
        return fail(why, Failure::Kind::bad_value, "the block is not in use: freed twice?");
    }
    if (block_freed_ != nullptr) block_freed_(address, bytes, cache->stream.handle);

    cache->take_for_sure();
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
        cache->bytes > cache_bytes_.load(std::memory_order_relaxed)) {
        full = {cache, chunk->index};
    }
    cache->leave();
    return true;
}

StreamRef Pool::stream_of(const Block& block) {
    const std::lock_guard guard(lock_);
    return streams_[block.stream()];
}

}  // namespace vramkit::pool
