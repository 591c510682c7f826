// The slow paths: refilling and spilling caches, growth, and what happens when memory is short.
#include <algorithm>
#include <unordered_set>

#include "pool/pool.h"
#include "pool/scopes.h"
#include "pool/threads.h"

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kLargestSlab = std::uint64_t{32} << 20;
constexpr std::uint64_t kRefillPart = 64;  // of a cache's bytes
// Marks that one refill asks the driver about while memory is left, and when it is short.
constexpr std::size_t kQuestions = 1;
constexpr std::size_t kAllQuestions = ~std::size_t{0};

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
    if (const BlockRef block = take_global(cache, index, kQuestions); block.chunk != nullptr) {
        return serve(block);
    }
    // What can never be served costs the others nothing: no cache is emptied for it.
    const std::uint64_t most =
        config_.limit > 0 ? std::min(config_.limit, card_bytes_) : card_bytes_;
    if (class_bytes(index) > most) {
        why = {Failure::Kind::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY, "", ""};
        why.message = explain(bytes, why);
        return 0;
    }
    const std::uint64_t batch = config_.batch_alloc_count;
    const auto grown = [&] { return grow(index, batch, why) || grow(index, 1, why); };
    if (grown()) return serve(take_fresh(cache, index));
    if (why.kind != Failure::Kind::out_of_memory) return 0;

    // Short of memory: what idle threads cache, then memory of other classes that nothing uses.
    reclaim_caches();
    if (const BlockRef block = take_global(cache, index, kAllQuestions); block.chunk != nullptr) {
        return serve(block);
    }
    if (release_idle() > 0 && grow(index, 1, why)) return serve(take_fresh(cache, index));
    if (may_wait) {
        // A block of this class whose work is not done: the stream waits for it, not the host.
        if (const BlockRef block = take_after_gpu_wait(index, stream); block.chunk != nullptr) {
            return serve(block);
        }
        wait_for_marks();
        if (const BlockRef block = take_global(cache, index, kAllQuestions);
            block.chunk != nullptr) {
            return serve(block);
        }
        if (release_idle() > 0 && grow(index, 1, why)) return serve(take_fresh(cache, index));
    }
    why.message = explain(bytes, why);
    return 0;
}

// The same stream's blocks at once; another's when their mark has passed; fresh ones. Takes a
// batch: what is not handed out now goes into the cache. The driver is asked about few marks: each
// question costs as much as the rest, and the oldest one is the likeliest to have passed.
BlockRef Pool::take_global(Cache& cache, ClassIndex index, std::size_t questions) {
    Bin& bin = bins_[index];
    const auto first = [&](auto usable) {
        return std::find_if(bin.batches.begin(), bin.batches.end(), usable);
    };
    auto batch = first([&](const Batch& each) { return each.stream == cache.number; });
    if (batch == bin.batches.end()) {
        batch = first([](const Batch& each) {
            return each.marked && (each.mark == nullptr || each.mark->known());
        });
    }
    if (batch == bin.batches.end() && !bin.fresh.empty()) return take_fresh(cache, index);
    if (batch == bin.batches.end()) {
        batch = first([&](Batch& each) { return questions > 0 && (--questions, passed(each)); });
    }
    if (batch == bin.batches.end()) return {};
    ++slow_.global_hits;
    return take_any(cache, index, bin, static_cast<std::size_t>(batch - bin.batches.begin()));
}

BlockRef Pool::take_any(Cache& cache, ClassIndex index, Bin& bin, std::size_t which) {
    Batch& batch = bin.batches[which];
    const BlockRef first = batch.blocks.back();
    batch.blocks.pop_back();
    --first.chunk->idle;
    --bin.waiting;
    cache.take_for_sure();
    for (std::size_t more = room_for(cache, index); more > 0 && !batch.blocks.empty(); --more) {
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

std::size_t Pool::room_for(const Cache& cache, ClassIndex index) const {
    // Large blocks are not hoarded: a cache of them would sit on the card.
    if (is_large(index) || cache.bytes >= config_.cache_bytes) return 0;
    const std::uint64_t held = cache.bins[index].size();
    if (held >= config_.thread_cache_max_blocks) return 0;
    // A refill is a small part of the cache: one with much of a class would push the others out.
    const std::uint64_t bytes =
        std::min(config_.cache_bytes - cache.bytes, config_.cache_bytes / kRefillPart);
    return std::min({config_.batch_alloc_count - 1, config_.thread_cache_max_blocks - held,
                     bytes / class_bytes(index)});
}

BlockRef Pool::take_fresh(Cache& cache, ClassIndex index) {
    auto& fresh = bins_[index].fresh;
    if (fresh.empty()) return {};
    ++slow_.fresh_hits;
    const BlockRef first = fresh.back();
    fresh.pop_back();
    --first.chunk->idle;
    cache.take_for_sure();
    for (std::size_t more = room_for(cache, index); more > 0 && !fresh.empty(); --more) {
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
        mark_now(batch);
        if (batch.mark != nullptr && batch.mark->event() == nullptr) continue;
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

std::shared_ptr<Mark> Pool::mark(std::uint32_t number) {
    const KnownStream& stream = streams_[number];
    if (stream.ended) return stream.end;
    if (!names_its_stream(stream.ref)) return std::make_shared<Mark>(events_, nullptr);
    auto made = Mark::record(events_, stream.ref.handle);
    if (made->event() != nullptr) ++slow_.marks;
    return made;
}

// With the owner word. The oldest blocks go.
void Pool::take_out(Cache& cache, ClassIndex index, std::size_t blocks,
                    std::vector<Leaving>& leaving) {
    auto& from = cache.bins[index];
    const auto end = from.begin() + static_cast<std::ptrdiff_t>(std::min(blocks, from.size()));
    if (end == from.begin()) return;
    leaving.push_back({index, {from.begin(), end}});
    cache.bytes -= leaving.back().blocks.size() * class_bytes(index);
    from.erase(from.begin(), end);
}

void Pool::take_out_all(Cache& cache, std::vector<Leaving>& leaving) {
    for (ClassIndex index = 0; index < kClasses; ++index) {
        take_out(cache, index, cache.bins[index].size(), leaving);
    }
}

// The mark comes after the blocks have left the cache: nothing freed behind it goes with them. Of a
// stream that cannot vanish unseen it is put off: its own blocks come back to it without one.
void Pool::shelve(std::uint32_t number, std::vector<Leaving>& leaving) {
    if (leaving.empty()) return;
    const KnownStream& stream = streams_[number];
    const bool marked = stream.ended || !stream.ref.told;
    shelve(number, leaving, marked, marked ? mark(number) : nullptr);
}

void Pool::mark_now(Batch& batch) {
    if (batch.marked) return;
    batch.mark = mark(batch.stream);
    batch.marked = true;
}

bool Pool::passed(Batch& batch) {
    mark_now(batch);
    return batch.mark == nullptr || batch.mark->passed();
}

void Pool::shelve(std::uint32_t number, std::vector<Leaving>& leaving, bool marked,
                  const std::shared_ptr<Mark>& behind) {
    for (Leaving& each : leaving) {
        for (const BlockRef& block : each.blocks) {
            block.block().set(State::waiting, number, 0);
            ++block.chunk->idle;
        }
        bins_[each.index].waiting += each.blocks.size();
        bins_[each.index].batches.push_back({number, marked, behind, std::move(each.blocks)});
    }
}

void Pool::spill(const Full& full) {
    Cache& cache = *full.cache;
    const std::lock_guard guard(lock_);
    if (abandoned_) return;
    const SlowPathScope scope(call_, context_);
    std::vector<Leaving> leaving;
    cache.take_for_sure();
    const bool over = cache.bytes > config_.cache_bytes;
    if (cache.ended) {
        take_out_all(cache, leaving);
    } else if (over && class_bytes(full.index) <= config_.cache_bytes) {
        // Over the bytes: the largest blocks go, down to seven eighths. The small ones weigh
        // nothing and are asked for most.
        const std::uint64_t enough = config_.cache_bytes / 8 * 7;
        for (ClassIndex index = kClasses; index-- > 0 && cache.bytes > enough;) {
            const std::uint64_t each = class_bytes(index);
            take_out(cache, index, (cache.bytes - enough + each - 1) / each, leaving);
        }
    } else {
        // A block that no cache could hold goes alone, and leaves the others where they are.
        const std::size_t held = cache.bins[full.index].size();
        take_out(cache, full.index, over ? held : (held + 1) / 2, leaving);
    }
    cache.leave();
    shelve(cache.number, leaving);
    const bool many = std::any_of(leaving.begin(), leaving.end(), [&](const Leaving& each) {
        return bins_[each.index].waiting > config_.global_cache_max_blocks;
    });
    if (many) release_idle();
}

void Pool::reclaim_caches() {
    for (const auto& cache : caches_) {
        std::vector<Leaving> leaving;
        cache->take_for_sure();
        take_out_all(*cache, leaving);
        cache->leave();
        shelve(cache->number, leaving);
    }
}

void Pool::wait_for_marks() {
    for (Bin& bin : bins_) {
        for (Batch& batch : bin.batches) {
            mark_now(batch);
            if (batch.mark != nullptr) batch.mark->wait();
        }
    }
}

// Chunks of which every block is at the global level, and no block's work is under way.
std::uint64_t Pool::release_idle() {
    std::unordered_set<const Chunk*> busy;
    for (Bin& bin : bins_) {
        for (Batch& batch : bin.batches) {
            if (passed(batch)) continue;
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
    // Asked for more than there is, it takes nothing: not all there is, and then fails.
    const std::uint64_t ready = bins_[index].fresh.size();
    size_t free = 0, total = 0;
    call_.cuMemGetInfo_v2(&free, &total);
    const std::uint64_t left =
        config_.limit > 0 ? config_.limit - std::min(config_.limit, reserved_) : card_bytes_;
    const std::uint64_t most = std::min<std::uint64_t>(free, left) / class_bytes(index);
    if (count > ready && count - ready > most) {
        why = {Failure::Kind::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY, "", ""};
        why.message = std::to_string(count) + " blocks: " + explain(bytes, why);
        return false;
    }
    while (bins_[index].fresh.size() < count) {
        if (!grow(index, count - bins_[index].fresh.size(), why)) {
            why.message = explain(bytes, why);
            return false;
        }
    }
    return true;
}

std::uint64_t Pool::trim(bool wait) {
    const std::lock_guard guard(lock_);
    if (abandoned_) return 0;
    const SlowPathScope scope(call_, context_);
    reclaim_caches();
    if (wait) wait_for_marks();
    const std::uint64_t released = release_idle();
    events_.drop();
    return released;
}

void Pool::stream_closing(std::uint64_t id) {
    const std::lock_guard guard(lock_);
    const auto known = stream_numbers_.find(id);
    if (closed() || known == stream_numbers_.end()) return;
    const std::uint32_t number = known->second;
    const SlowPathScope scope(call_, context_);
    std::vector<Leaving> leaving;
    for (const auto& cache : caches_) {
        if (cache->number != number) continue;
        cache->take_for_sure();
        cache->ended = true;
        take_out_all(*cache, leaving);
        cache->leave();
    }
    // Kept for blocks of the stream that are live, until it has passed.
    const auto end = mark(number);
    shelve(number, leaving, true, end);
    for (Bin& bin : bins_) {
        for (Batch& batch : bin.batches) {
            if (batch.stream != number || batch.marked) continue;
            batch.mark = end;
            batch.marked = true;
        }
    }
    stream_numbers_.erase(known);
    streams_[number].ended = true;
    streams_[number].end = end;
    ending_.push_back(number);
    std::erase_if(ending_, [&](std::uint32_t each) {
        if (!streams_[each].end->passed()) return false;
        streams_[each].end = nullptr;
        return true;
    });
}

void Pool::cache_ending(Cache* cache) {
    const std::lock_guard guard(lock_);
    std::optional<SlowPathScope> scope;
    if (!abandoned_) scope.emplace(call_, context_);
    retire(cache);
}

void Pool::retire(Cache* cache) {
    std::vector<Leaving> leaving;
    cache->take_for_sure();
    take_out_all(*cache, leaving);
    report_live(*cache);
    ended_.add(cache->counters);
    cache->leave();
    if (!abandoned_) shelve(cache->number, leaving);
    std::erase_if(caches_, [&](const auto& each) { return each.get() == cache; });
}

void Pool::abandon() {
    const std::lock_guard guard(lock_);
    abandoned_ = true;
    closed_.store(true, std::memory_order_release);
    forget_driver();
}

void Pool::forget_driver() {
    for (Bin& bin : bins_) {
        for (Batch& batch : bin.batches) {
            if (batch.mark != nullptr) batch.mark->forget();
        }
    }
    for (const std::uint32_t number : ending_) streams_[number].end->forget();
    events_.forget();
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
    wait_for_marks();
    release_idle();
    for (const std::uint32_t number : ending_) streams_[number].end = nullptr;
    ending_.clear();
    events_.drop();
    closed_.store(true, std::memory_order_release);
    // What the driver refused to take is tried again at the end of the pool.
    if (chunks_.empty()) range_->release();
    return true;
}

}  // namespace vramkit::pool
