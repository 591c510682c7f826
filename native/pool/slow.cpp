// The slow paths: refilling and spilling caches, growth, and what happens when memory is short.
#include <algorithm>
#include <unordered_set>

#include "pool/pool.h"
#include "pool/scopes.h"
#include "pool/threads.h"

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kLargestSlab = std::uint64_t{32} << 20;

}  // namespace

std::uint64_t Pool::malloc_slow(Cache& cache, ClassIndex index, std::uint64_t bytes,
                                StreamRef stream, bool may_wait, Failure& why) {
    const std::lock_guard guard(lock_);
    if (closed()) {
        why.kind = Failure::Kind::closed;
        why.message = "the pool is closed";
        return 0;
    }
    const SlowPathScope scope(call_, context_);
    const auto serve = [&](BlockRef block) {
        cache.take_for_sure();
        const std::uint64_t address = hand_out(cache, block, bytes, stream, false);
        cache.leave();
        return address;
    };
    if (const BlockRef block = take_global(cache, index, stream); block.chunk != nullptr) {
        return serve(block);
    }
    const std::uint64_t batch = config_.batch_alloc_count;
    const auto grown = [&] { return grow(index, batch, why) || grow(index, 1, why); };
    if (grown()) return serve(take_fresh(cache, index));
    if (why.kind != Failure::Kind::out_of_memory) return 0;

    // Short of memory: what idle threads cache, then memory of other classes that nothing uses.
    reclaim_caches();
    if (const BlockRef block = take_global(cache, index, stream); block.chunk != nullptr) {
        return serve(block);
    }
    if (release_idle(false) > 0 && grow(index, 1, why)) return serve(take_fresh(cache, index));
    if (may_wait) {
        // A block of this class whose work is not done: the stream waits for it, not the host.
        if (const BlockRef block = take_after_gpu_wait(index, stream); block.chunk != nullptr) {
            return serve(block);
        }
        if (release_idle(true) > 0 && grow(index, 1, why)) return serve(take_fresh(cache, index));
    }
    why.message = explain(bytes, why);
    return 0;
}

// The same stream's blocks at once; another's when their mark has passed; then fresh ones. Takes a
// batch: what is not handed out now goes into the cache.
BlockRef Pool::take_global(Cache& cache, ClassIndex index, StreamRef) {
    Bin& bin = bins_[index];
    const auto usable = [&](bool own) {
        return std::find_if(bin.batches.begin(), bin.batches.end(), [&](const Batch& batch) {
            if (own) return batch.stream == cache.number;
            return batch.mark == nullptr || batch.mark->passed();
        });
    };
    auto batch = usable(true);
    if (batch == bin.batches.end()) batch = usable(false);
    if (batch == bin.batches.end()) return take_fresh(cache, index);
    ++slow_.global_hits;
    return take_any(cache, index, bin, static_cast<std::size_t>(batch - bin.batches.begin()));
}

BlockRef Pool::take_any(Cache& cache, ClassIndex index, Bin& bin, std::size_t which) {
    Batch& batch = bin.batches[which];
    const BlockRef first = batch.blocks.back();
    batch.blocks.pop_back();
    --first.chunk->idle;
    --bin.waiting;
    // Large blocks are not hoarded: a cache of them would sit on the card.
    std::size_t more = is_large(index) ? 0 : config_.batch_alloc_count - 1;
    cache.take_for_sure();
    for (; more > 0 && !batch.blocks.empty(); --more) {
        const BlockRef block = batch.blocks.back();
        batch.blocks.pop_back();
        --block.chunk->idle;
        --bin.waiting;
        block.block().set(State::cached, cache.number, 0);
        cache.bins[index].push_back(block);
        cache.bytes += block.chunk->block_bytes;
    }
    cache.leave();
    if (batch.blocks.empty()) {
        bin.batches.erase(bin.batches.begin() + static_cast<std::ptrdiff_t>(which));
    }
    return first;
}

BlockRef Pool::take_fresh(Cache& cache, ClassIndex index) {
    auto& fresh = bins_[index].fresh;
    if (fresh.empty()) return {};
    ++slow_.fresh_hits;
    const BlockRef first = fresh.back();
    fresh.pop_back();
    --first.chunk->idle;
    std::size_t more = is_large(index) ? 0 : config_.batch_alloc_count - 1;
    cache.take_for_sure();
    for (; more > 0 && !fresh.empty(); --more) {
        const BlockRef block = fresh.back();
        fresh.pop_back();
        --block.chunk->idle;
        block.block().set(State::cached, cache.number, 0);
        cache.bins[index].push_back(block);
        cache.bytes += block.chunk->block_bytes;
    }
    cache.leave();
    return first;
}

bool Pool::grow(ClassIndex index, std::uint64_t blocks, Failure& why) {
    const std::uint64_t block_bytes = class_bytes(index);
    const std::uint64_t most = std::max<std::uint64_t>(1, kLargestSlab / block_bytes);
    const auto count = is_large(index)
                           ? 1u
                           : static_cast<std::uint32_t>(std::clamp(blocks, std::uint64_t{1}, most));
    const std::uint64_t bytes = (block_bytes * count + kPage - 1) / kPage * kPage;
    if (config_.limit > 0 && reserved_ + bytes > config_.limit) {
        why = {Failure::Kind::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY, "", ""};
        return false;
    }
    std::unique_ptr<Chunk> chunk = range_->map(index, count, why);
    if (chunk == nullptr) return false;
    ++slow_.device_growths;
    reserved_ += chunk->bytes;
    peak_reserved_ = std::max(peak_reserved_, reserved_);
    chunk->idle = chunk->count;
    auto& fresh = bins_[index].fresh;
    for (std::uint32_t number = chunk->count; number-- > 0;) {
        fresh.push_back(BlockRef{chunk.get(), number});
    }
    chunks_.emplace(chunk.get(), std::move(chunk));
    why = {};
    return true;
}

BlockRef Pool::take_after_gpu_wait(ClassIndex index, StreamRef stream) {
    Bin& bin = bins_[index];
    for (std::size_t i = 0; i < bin.batches.size(); ++i) {
        Batch& batch = bin.batches[i];
        if (batch.mark != nullptr &&
            call_.cuStreamWaitEvent(stream.handle, batch.mark->event(), 0) != CUDA_SUCCESS) {
            continue;
        }
        const BlockRef block = batch.blocks.back();
        batch.blocks.pop_back();
        --block.chunk->idle;
        --bin.waiting;
        if (batch.blocks.empty()) {
            bin.batches.erase(bin.batches.begin() + static_cast<std::ptrdiff_t>(i));
        }
        ++slow_.global_hits;
        return block;
    }
    return {};
}

// Behind all work that the stream holds now. Null: that work is done, since the host waited for it
// where no event was to be had.
std::shared_ptr<Mark> Pool::mark(const StreamRef& stream) {
    std::shared_ptr<Mark> mark;
    // The handle of the per-thread default stream means another stream on every thread.
    unsigned long long id = stream.id;
    if (stream.handle == VRAMKIT_STREAM_PER_THREAD) call_.cuStreamGetId(stream.handle, &id);
    if (id == stream.id) mark = Mark::record(call_, stream.handle);
    if (mark != nullptr) {
        ++slow_.marks;
    } else {
        call_.cuCtxSynchronize();
    }
    return mark;
}

void Pool::spill(Cache& cache, ClassIndex index, std::size_t blocks,
                 const std::shared_ptr<Mark>& mark) {
    auto& from = cache.bins[index];
    blocks = std::min(blocks, from.size());
    if (blocks == 0) return;
    Bin& bin = bins_[index];
    Batch batch{
        cache.number, mark, {from.begin(), from.begin() + static_cast<std::ptrdiff_t>(blocks)}};
    from.erase(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(blocks));
    for (const BlockRef& block : batch.blocks) {
        block.block().set(State::waiting, cache.number, 0);
        ++block.chunk->idle;
        cache.bytes -= block.chunk->block_bytes;
    }
    bin.waiting += blocks;
    bin.batches.push_back(std::move(batch));
}

void Pool::spill_all(Cache& cache) {
    const bool any = std::any_of(cache.bins.begin(), cache.bins.end(),
                                 [](const auto& bin) { return !bin.empty(); });
    if (!any) return;
    const auto behind = mark(cache.stream);
    for (ClassIndex index = 0; index < kClasses; ++index) {
        spill(cache, index, cache.bins[index].size(), behind);
    }
}

void Pool::spill(const Full& full) {
    Cache& cache = *full.cache;
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    cache.take_for_sure();
    if (cache.bytes > config_.cache_bytes) {
        // Over the bytes: everything goes, large blocks and small, behind one mark.
        spill_all(cache);
    } else {
        spill(cache, full.index, (cache.bins[full.index].size() + 1) / 2, mark(cache.stream));
    }
    cache.leave();
    if (bins_[full.index].waiting > config_.global_cache_max_blocks) release_idle(false);
}

void Pool::reclaim_caches() {
    for (const auto& cache : caches_) {
        cache->take_for_sure();
        spill_all(*cache);
        cache->leave();
    }
}

// Chunks of which every block is at the global level, and no block's work is under way.
std::uint64_t Pool::release_idle(bool wait) {
    std::unordered_set<const Chunk*> busy;
    for (Bin& bin : bins_) {
        for (Batch& batch : bin.batches) {
            if (batch.mark == nullptr) continue;
            if (wait ? batch.mark->wait() == CUDA_SUCCESS : batch.mark->passed()) continue;
            for (const BlockRef& block : batch.blocks) busy.insert(block.chunk);
        }
    }
    std::unordered_set<const Chunk*> gone;
    std::uint64_t bytes = 0;
    for (auto each = chunks_.begin(); each != chunks_.end(); ++each) {
        Chunk& chunk = *each->second;
        if (chunk.idle != chunk.count || busy.contains(&chunk) || !range_->unmap(chunk)) continue;
        gone.insert(&chunk);
        bytes += chunk.bytes;
    }
    if (gone.empty()) return 0;
    const auto is_gone = [&](const BlockRef& block) { return gone.contains(block.chunk); };
    for (Bin& bin : bins_) {
        std::erase_if(bin.fresh, is_gone);
        for (Batch& batch : bin.batches) bin.waiting -= std::erase_if(batch.blocks, is_gone);
        std::erase_if(bin.batches, [](const Batch& batch) { return batch.blocks.empty(); });
    }
    std::erase_if(chunks_, [&](const auto& entry) { return gone.contains(entry.first); });
    reserved_ -= bytes;
    return bytes;
}

bool Pool::preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why) {
    if (bytes == 0 || bytes > kLargestRequest || count == 0) {
        why = {Failure::Kind::bad_value, CUDA_SUCCESS, "",
               "preallocate takes blocks of 1 to " + std::to_string(kLargestRequest) +
                   " bytes, and at least one"};
        return false;
    }
    const std::lock_guard guard(lock_);
    if (closed()) {
        why = {Failure::Kind::closed, CUDA_SUCCESS, "", "the pool is closed"};
        return false;
    }
    const SlowPathScope scope(call_, context_);
    const ClassIndex index = class_of(bytes, config_.classes);
    while (bins_[index].fresh.size() < count) {
        if (!grow(index, count - bins_[index].fresh.size(), why)) {
            why.message = explain(bytes * count, why);
            return false;
        }
    }
    return true;
}

std::uint64_t Pool::trim(bool wait) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    reclaim_caches();
    return release_idle(wait);
}

void Pool::stream_closing(std::uint64_t id) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    for (const auto& cache : caches_) {
        if (cache->stream.id != id) continue;
        cache->take_for_sure();
        spill_all(*cache);
        cache->leave();
    }
}

void Pool::cache_ending(Cache* cache) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    cache->take_for_sure();
    spill_all(*cache);
    report_live(*cache);
    ended_.add(cache->counters);
    std::erase_if(caches_, [&](const auto& each) { return each.get() == cache; });
}

void Pool::abandon() {
    const std::lock_guard guard(lock_);
    abandoned_ = true;
    closed_.store(true, std::memory_order_release);
    for (Bin& bin : bins_) {
        for (Batch& batch : bin.batches) {
            if (batch.mark != nullptr) batch.mark->forget();
        }
    }
    range_->forget();
}

bool Pool::close(Failure& why) {
    const std::lock_guard guard(lock_);
    if (closed()) return true;
    const SlowPathScope scope(call_, context_);
    if (const std::uint64_t live = live_bytes(); live > 0) {
        why = {Failure::Kind::bad_value, CUDA_SUCCESS, "",
               "the pool cannot close: " + std::to_string(live) + " bytes are still in use"};
        return false;
    }
    reclaim_caches();
    release_idle(true);
    closed_.store(true, std::memory_order_release);
    return true;
}

}  // namespace vramkit::pool
