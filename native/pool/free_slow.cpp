// Frees that the hot path does not serve: on streams seen for the first time, with captures or uses
// on other streams, of blocks straight from the driver; and the errors of free.
#include <algorithm>
#include <string>
#include <utility>

#include "base/host_memory.h"
#include "pool/pool.h"

namespace vramkit::pool {
namespace {

constexpr const char* kNotInUse = "the block is not in use: freed twice?";

}  // namespace

// The bytes and the block of a pointer that may be freed (no slab: straight from the driver). 0 and
// the reason: it may not.
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
        const bool is_block = number < slab->count;
        block = {slab, static_cast<std::uint32_t>(number)};
        // Its slab may have ended since, so that the pointer lies inside free memory.
        if (is_block && !block.block().with_user()) return refuse(kNotInUse);
        if (!is_block || number * slab->block_bytes != inside) {
            return refuse("the pointer lies inside a block; free takes the one malloc returned");
        }
        bytes = slab->asked_for(block.block());
    } else {
        const std::lock_guard guard(lock_);
        const std::optional<std::uint64_t> direct = parts_.direct.bytes_at(address);
        if (!direct) {
            return refuse("the pointer is not of this pool, or not one that malloc returned");
        }
        bytes = *direct;
    }
    if (given && *given != bytes) {
        return refuse("the block has " + std::to_string(bytes) + " bytes, not " +
                      std::to_string(*given));
    }
    return bytes;
}

bool Pool::free_slowly(BlockRef block, std::uint64_t bytes, const std::optional<StreamRef>& stream,
                       Full& full, Failure& why) {
    const std::lock_guard guard(lock_);
    const auto refuse = [&] {
        why = Failure::bad_value(kNotInUse);
        return false;
    };
    if (!block.block().with_user()) return refuse();  // another thread was faster
    if (!is_open(why)) return false;
    std::optional<FreePlan> plan = parts_.held.plan(block, stream, why);
    if (!plan) return false;
    ThreadCache& cache = parts_.threads.of(plan->home);
    const State to = plan->uses.empty() ? State::cached : State::held;
    parts_.held.make_room();
    {
        const ThreadCache::Entered entered(cache);
        cache.make_room(block.slab->index);
        // Nothing fails from here on.
        if (!block.block().change(State::live, to) && !block.block().change(State::shared, to)) {
            return refuse();
        }
        if (to == State::cached) {
            take_back(cache, block, bytes);
            if (cache.is_over_bounds(block.slab->index)) {
                full = {&cache, block.slab->index, stream.has_value()};
            }
        } else {
            count_free(cache, bytes);
        }
    }
    parts_.held.forget(block.address());
    // A block that a graph may use counts as in use until it is no longer held.
    const bool of_graph = plan->has_graph();
    if (to == State::held && !of_graph && checked_) {
        tell_checker_of_free(cache, block.address(), bytes, true);
    }
    if (to == State::held) parts_.held.hold(block, *std::move(plan));
    if (nvtx_ != nullptr && !of_graph) tell_tool_of_end(cache, block);
    if (to == State::held) {
        const SlowPathScope scope = parts_.card.enter();
        // If host memory runs out, the block is freed, but held until a later call succeeds.
        if_host_memory_allows([&] { parts_.held.release(); });
    }
    return true;
}

bool Pool::also_used_on(std::uint64_t address, const StreamRef& stream, Failure& why) {
    BlockRef block;
    if (find_live(address, {}, block, why) == 0) return false;
    const std::lock_guard guard(lock_);
    if (block.slab == nullptr) {
        if (parts_.direct.bytes_at(address)) return note_graph(address, stream, why);
        why = Failure::bad_value(kNotInUse);
        return false;
    }
    const std::optional<std::uint32_t> number = number_of(stream, why);
    if (!number) return false;
    if (!block.block().change(State::live, State::shared) &&
        block.block().state() != State::shared) {
        why = Failure::bad_value(kNotInUse);
        return false;
    }
    parts_.held.note(address, *number);
    return true;
}

bool Pool::free_beside(std::uint64_t address, const StreamRef& current, Failure& why) {
    BlockRef block;
    if (find_live(address, {}, block, why) == 0) return false;
    bool same = false;
    if (block.slab != nullptr && !closed()) {
        const std::lock_guard guard(lock_);
        const std::uint32_t number = block.block().stream();
        const StreamRecord& stream = parts_.streams[number];
        if (is_capture(number) || current.capture != 0) {
            same = stream.handle == current.handle;  // captured streams are known by handle
        } else if (stream.cache != nullptr) {
            // By id: the driver may have reused the handle.
            same = stream.cache->stream.id == current.id;
        }
    }
    return free(address, {}, same ? std::optional(current) : std::nullopt, why);
}

// If the stream is captured, its graph may use the block later.
bool Pool::note_graph(std::uint64_t address, const StreamRef& stream, Failure& why) {
    if (stream.capture == 0) return true;
    const std::optional<std::uint32_t> number = number_of(stream, why);
    if (number) parts_.direct.note_graph(address, parts_.streams[*number].graph);
    return number.has_value();
}

bool Pool::free_direct(std::uint64_t address, const std::optional<StreamRef>& stream,
                       Failure& why) {
    std::unique_lock guard(lock_);
    const std::optional<std::uint64_t> bytes = parts_.direct.bytes_at(address);
    if (!bytes) {
        why = Failure::bad_value(kNotInUse);
        return false;
    }
    if (stream && !note_graph(address, *stream, why)) return false;
    const std::uint32_t number = parts_.direct.stream_of(address);
    // Before the driver has it: this may fail, and keeps the number known while the lock is let go.
    ThreadCache& cache = parts_.threads.of(number);
    if (!parts_.direct.free(address, guard, why)) return false;
    const ThreadCache::Entered entered(cache);
    count_free(cache, *bytes);
    return true;
}

}  // namespace vramkit::pool
