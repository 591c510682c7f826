// The hot paths: no lock, no driver call.
#include "pool/pool.h"
#include "base/rules.h"

#include <algorithm>

#include "base/scopes.h"
#include "base/stream_ref.h"
#include "pool/threads/threads.h"

namespace vramkit::pool {
namespace {

// With the biased lock: whether blocks have to leave, of this class or of any.
bool is_over_bounds(const ThreadCache& cache, ClassIndex index) {
    return cache.bins[index].blocks.size() > cache.most_blocks.load(std::memory_order_relaxed) ||
           cache.bytes > cache.most_bytes.load(std::memory_order_relaxed) ||
           index >= cache.first_large.load(std::memory_order_relaxed) || cache.ended;
}

}  // namespace

std::uint64_t Pool::malloc_cached(std::uint64_t bytes, const StreamRef& stream) {
    if (bytes - 1 >= kLargestRequest || forked()) return 0;
    ThreadCache* const cache = find_cache(id_, stream);
    if (cache == nullptr) return 0;
    const ClassIndex index = class_map_.load(std::memory_order_acquire)->of(bytes);
    cache->lock.enter();
    ThreadCache::Bin& bin = cache->bins[index];
    if (bin.blocks.empty()) {
        cache->lock.leave();
        return 0;
    }
    const BlockRef block = bin.blocks.back();
    bin.blocks.pop_back();
    if (bin.size() < bin.low) bin.low = bin.size();
    cache->bytes -= block.bytes();
    ++cache->counters.hits;
    const std::uint64_t address = hand_out(*cache, block, bytes, index);
    const bool counted = usage_.rise(*cache);
    cache->lock.leave();
    if (!counted) usage_.claim(*cache);
    if (nvtx_ != nullptr) tell_tool_of_use(*cache, block, bytes);
    return address;
}

// With the cache's biased lock.
std::uint64_t Pool::hand_out(ThreadCache& cache, BlockRef block, std::uint64_t bytes,
                             ClassIndex index) {
    const std::uint64_t address = block.address();
    const bool large = block.slab->large;
    if (large) block.slab->asked = bytes;
    block.block().set(State::live, cache.number, large ? 0 : static_cast<std::uint32_t>(bytes));
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.allocations;
        cache.counters.allocated_bytes += bytes;
    }
    cache.live += static_cast<std::int64_t>(bytes);
    if (index > cache.largest) cache.largest = index;
    checker_.block_allocated(address, bytes, cache.stream.handle);
    return address;
}

Pool::Freed Pool::free_cached(std::uint64_t address, std::uint64_t given, const StreamRef* stream,
                              Full& full) {
    if (forked()) return Freed::slow;
    Slab* const slab = page_map_->slab_of(address);
    if (slab == nullptr) return Freed::slow;
    const std::uint64_t inside = address - slab->address;
    const std::uint64_t number = slab->number_at(inside);
    if (number >= slab->count || number * slab->block_bytes != inside) return Freed::slow;
    const BlockRef ref{slab, static_cast<std::uint32_t>(number)};
    Block& block = ref.block();
    if (block.state() != State::live) return Freed::slow;
    const std::uint64_t bytes = slab->asked_for(block);
    if (given != 0 && given != bytes) return Freed::slow;
    // Without a stream it is that of the allocation, of which this thread mostly has a cache.
    const std::uint32_t owner = block.stream();
    ThreadCache* const cache = stream != nullptr && !is_broken(Rule::given_stream_counts)
                                   ? find_cache(id_, *stream)
                                   : find_cache_by_number(id_, owner);
    // Where captures come in, plan_free() decides.
    if (cache == nullptr || (is_capture(owner) && stream == nullptr)) return Freed::slow;
    if (owner != cache->number && (is_capture(owner) || is_capture(cache->number)) &&
        !is_broken(Rule::graph_keeps_its_block)) {
        return Freed::slow;
    }
    if (nvtx_ != nullptr) tell_tool_of_end(*cache, ref);
    {
        const ThreadCache::Entered entered(*cache);
        // Of a stream that was announced to end, and is used still.
        if (stream != nullptr && cache->ended) [[unlikely]]
            return Freed::slow;
        cache->make_room(slab->index);
        if (!block.take_from_user()) return Freed::slow;
        take_back(*cache, ref, bytes);
        if (is_over_bounds(*cache, slab->index)) full = {cache, slab->index, stream != nullptr};
    }
    return Freed::yes;
}

// With the biased lock, of a block that was just taken from its user.
void Pool::take_back(ThreadCache& cache, BlockRef block, std::uint64_t bytes) {
    if (checker_.listens()) tell_checker_of_free(cache, block.address(), bytes);
    cache.push(block);
    count_free(cache, bytes);
}

void Pool::count_free(ThreadCache& cache, std::uint64_t bytes) {
    if (stats_on_.load(std::memory_order_relaxed)) {
        ++cache.counters.frees;
        cache.counters.freed_bytes += bytes;
    }
    cache.live -= static_cast<std::int64_t>(bytes);
    usage_.fall(cache);
}

// Of a stream that is no more, and of another thread's default stream, there is no telling: both
// go by handles that mean another stream by now. What goes back to a capture is not free: its graph
// uses it with every launch.
void Pool::tell_checker_of_free(const ThreadCache& cache, std::uint64_t address,
                                std::uint64_t bytes, bool held) {
    if (cache.ended || cache.stream.capture != 0) return;
    if (cache.stream.handle == VRAMKIT_STREAM_PER_THREAD) {
        unsigned long long id = 0;
        if (call_.cuStreamGetId(cache.stream.handle, &id) != CUDA_SUCCESS ||
            id != cache.stream.id) {
            return;
        }
    }
    if (held) {
        checker_.block_held(address, bytes, cache.stream.handle);
    } else {
        checker_.block_freed(address, bytes, cache.stream.handle);
    }
}

// A graph may use all of a block, now for this and then for that, with every launch.
void Pool::tell_tool_of_use(const ThreadCache& cache, BlockRef block, std::uint64_t bytes) {
    nvtx_->add_block(block.address(), is_capture(cache.number) ? block.bytes() : bytes);
}

// What goes back to a capture stays in use by its graph, until it is idle.
void Pool::tell_tool_of_end(const ThreadCache& cache, BlockRef block) {
    if (!is_capture(cache.number)) nvtx_->remove_block(block.address(), block.bytes());
}

std::uint64_t Pool::malloc(std::uint64_t bytes, const StreamRef& stream, bool may_wait,
                           Failure& why) {
    if (const std::uint64_t address = malloc_cached(bytes, stream); address != 0) return address;
    if (bytes == 0 || bytes > kLargestRequest) {
        why = Failure::bad_value("a block has 1 to " + std::to_string(kLargestRequest) +
                                 " bytes; asked for were " + std::to_string(bytes));
        return 0;
    }
    if (forked()) {
        why = Failure::forked("the pool");
        return 0;
    }
    if (closed()) {
        why = Failure::closed("the pool");
        return 0;
    }
    ThreadCache* const cache = cache_of(stream, why);
    if (cache == nullptr) return 0;
    if (bytes > kLargestPowerOfTwoClass && direct_on_.load(std::memory_order_relaxed) &&
        stream.capture == 0) {
        return malloc_direct(*cache, bytes, may_wait, why);
    }
    const ClassIndex index = class_map_.load(std::memory_order_acquire)->of(bytes);
    BlockRef block = take_from_stream_cache(*cache, index);
    if (block.slab == nullptr) block = split_or_join(*cache, index, cut_up_to(class_bytes(index)));
    if (block.slab == nullptr) block = malloc_slow(*cache, index, bytes, may_wait, why);
    if (block.slab == nullptr) return 0;
    cache->lock.enter();
    const std::uint64_t address = hand_out(*cache, block, bytes, index);
    const bool counted = usage_.rise(*cache);
    cache->lock.leave();
    if (!counted) usage_.claim(*cache);
    if (nvtx_ != nullptr) tell_tool_of_use(*cache, block, bytes);
    return address;
}

bool Pool::free(std::uint64_t address, std::optional<std::uint64_t> bytes,
                const std::optional<StreamRef>& stream, Failure& why) {
    Full full;
    if (free_cached(address, bytes.value_or(0), stream ? &*stream : nullptr, full) == Freed::slow) {
        BlockRef block;
        const std::uint64_t held = find_live(address, bytes, block, why);
        if (held == 0) return false;
        if (block.slab == nullptr) return free_direct(address, stream, why);
        if (!free_slowly(block, held, stream, full, why)) return false;
    }
    if (full.cache != nullptr) spill(full);
    return true;
}

// With all that can come in between: streams seen for the first time, captures, other uses.
bool Pool::free_slowly(BlockRef block, std::uint64_t bytes, const std::optional<StreamRef>& stream,
                       Full& full, Failure& why) {
    const std::lock_guard guard(lock_);
    const auto refuse = [&] {
        why = Failure::bad_value("the block is not in use: freed twice?");
        return false;
    };
    if (!block.block().with_user()) return refuse();  // another thread was faster
    std::optional<Freeing> plan = plan_free(block, stream, why);
    if (!plan) return false;
    ThreadCache& cache = cache_of_number(plan->home);
    const State to = plan->uses.empty() ? State::cached : State::held;
    held_blocks_.make_room();
    {
        const ThreadCache::Entered entered(cache);
        cache.make_room(block.slab->index);
        // Nothing fails from here on.
        if (!block.block().change(State::live, to) && !block.block().change(State::shared, to)) {
            return refuse();
        }
        if (to == State::cached) {
            take_back(cache, block, bytes);
            if (is_over_bounds(cache, block.slab->index)) {
                full = {&cache, block.slab->index, stream.has_value()};
            }
        } else {
            count_free(cache, bytes);
        }
    }
    held_blocks_.forget(block.address());
    // What a graph may launch work on is in use until it is held no longer.
    const auto of_graph = [](const Use& use) { return use.graph != nullptr; };
    const bool used = std::any_of(plan->uses.begin(), plan->uses.end(), of_graph);
    if (to == State::held && !used && checker_.listens()) {
        tell_checker_of_free(cache, block.address(), bytes, true);
    }
    if (to == State::held) held_blocks_.hold(block, plan->home, std::move(plan->uses));
    if (nvtx_ != nullptr && !used) tell_tool_of_end(cache, block);
    if (to == State::held) {
        const SlowPathScope scope(call_, context_);
        try {
            release_held(false);
        } catch (const std::bad_alloc&) {
            // It is freed, and held until the next who asks has host memory.
        }
    }
    return true;
}

// What a pointer stands for, where it may be freed: bytes and block (no slab: straight from the
// driver). 0 and the reason where it may not.
std::uint64_t Pool::find_live(std::uint64_t address, std::optional<std::uint64_t> given,
                              BlockRef& block, Failure& why) {
    const auto refuse = [&](std::string message) {
        why = closed() ? Failure::closed("the pool") : Failure::bad_value(std::move(message));
        return std::uint64_t{0};
    };
    if (forked()) {
        why = Failure::forked("the pool");
        return 0;
    }
    std::uint64_t bytes = 0;
    if (Slab* const slab = page_map_->slab_of(address); slab != nullptr) {
        const std::uint64_t inside = address - slab->address;
        const std::uint64_t number = slab->number_at(inside);
        if (number >= slab->count || number * slab->block_bytes != inside) {
            return refuse("the pointer lies inside a block; free takes the one malloc returned");
        }
        block = {slab, static_cast<std::uint32_t>(number)};
        if (!block.block().with_user()) return refuse("the block is not in use: freed twice?");
        bytes = slab->asked_for(block.block());
    } else {
        const std::lock_guard guard(lock_);
        const DirectBlock* const direct = direct_.find(address);
        if (direct == nullptr) {
            return refuse("the pointer is not of this pool, or not one that malloc returned");
        }
        bytes = direct->bytes;
    }
    if (given && *given != bytes) {
        return refuse("the block has " + std::to_string(bytes) + " bytes, not " +
                      std::to_string(*given));
    }
    return bytes;
}

}  // namespace vramkit::pool
