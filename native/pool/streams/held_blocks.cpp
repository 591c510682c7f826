// Frees that are not simply the stream's: of lent blocks, and where captures come in.
#include "pool/streams/held_blocks.h"
#include "base/rules.h"

#include "base/scopes.h"
#include "base/stream_ref.h"
#include "pool/pool.h"

namespace vramkit::pool {

bool Pool::also_used_on(std::uint64_t address, const StreamRef& stream, Failure& why) {
    BlockRef block;
    if (find_live(address, {}, block, why) == 0) return false;
    const std::lock_guard guard(lock_);
    if (block.slab == nullptr) {
        DirectBlock* const direct = direct_.find(address);
        if (direct == nullptr) why = Failure::bad_value("the block is not in use: freed twice?");
        return direct != nullptr && note_graph(*direct, stream, why);
    }
    const std::optional<std::uint32_t> number = number_of(stream, why);
    if (!number) return false;
    if (!block.block().change(State::live, State::shared) &&
        block.block().state() != State::shared) {
        why = Failure::bad_value("the block is not in use: freed twice?");
        return false;
    }
    held_blocks_.note(address, *number);
    return true;
}

bool Pool::free_beside(std::uint64_t address, const StreamRef& current, Failure& why) {
    BlockRef block;
    if (find_live(address, {}, block, why) == 0) return false;
    bool same = false;
    if (block.slab != nullptr && !closed()) {
        const std::lock_guard guard(lock_);
        const std::uint32_t number = block.block().stream();
        if (is_capture(number) || current.capture != 0) {
            same = known(number).handle == current.handle;  // captures go by it
        } else if (const StreamCache* const stream_cache = known(number).stream_cache.get();
                   stream_cache != nullptr) {
            same = stream_cache->stream.id ==
                   current.id;  // the driver has used the handle again, perhaps
        }
    }
    return free(address, {}, same ? std::optional(current) : std::nullopt, why);
}

// Where a block goes that is freed on a stream, or without one on that of its allocation, and who
// may still use it then.
//   - A plain block, freed on a plain stream: that stream's.
//   - A graph's block, freed inside its capture: that capture's stream's.
//   - A graph's block, freed elsewhere: stays the graph's, and the stream it is freed on may use it
//     up to now.
//   - A plain block, freed inside a capture: its stream's again when the graph is gone, which may
//     use it until then.
std::optional<Pool::Freeing> Pool::plan_free(BlockRef block, const std::optional<StreamRef>& stream,
                                             Failure& why) {
    if (closed()) {
        why = Failure::closed("the pool");
        return {};
    }
    const SlowPathScope scope(call_, context_);
    const std::uint32_t owner = block.block().stream();
    Freeing plan{owner, {}};
    std::optional<StreamRef> at = stream;
    if (!at && is_capture(owner)) at = stream_of_capture(owner);
    if (at) {
        const std::optional<std::uint32_t> given = number_of(*at, why);
        if (!given) return {};
        const bool same_capture = is_capture(owner) && is_capture(*given) &&
                                  captures_[owner & ~kCaptureBit].capture == at->capture;
        if (same_capture || (!is_capture(owner) && !is_capture(*given))) {
            if (!is_broken(Rule::given_stream_counts_on_slow_path)) plan.home = *given;
        } else if (*given != owner) {
            if (!is_broken(Rule::graph_waits_for_who_frees_its_block))
                add_use(plan.uses, *given, true);
        }
    } else if (is_capture(owner)) {
        plan.uses.emplace_back();
    }
    if (block.block().state() != State::shared) return plan;
    for (const std::uint32_t number : held_blocks_.noted(block.address())) {
        if (number == plan.home) continue;
        // Inside one capture the order becomes part of the graph.
        const bool in_capture = at && at->capture != 0 && is_capture(number) &&
                                captures_[number & ~kCaptureBit].capture == at->capture;
        if (in_capture && order_in_capture(known(number).stream_cache->stream, *at)) continue;
        if (!is_broken(Rule::held_until_other_streams_are_done)) add_use(plan.uses, number, false);
    }
    return plan;
}

// The stream that a capture was made on, as it is now; none where its handle may be dead.
std::optional<StreamRef> Pool::stream_of_capture(std::uint32_t number) {
    const Known& capture = known(number);
    if (!capture.durable) return {};
    StreamRef stream{capture.handle};
    stream.durable = true;
    if (identify(call_, stream) != CUDA_SUCCESS) return {};
    return stream;
}

// given: the stream was given to this call, and its handle is good.
void Pool::add_use(std::vector<Use>& uses, std::uint32_t number, bool given) {
    const Known& by = known(number);
    if (by.stream_cache == nullptr) return;  // it is over
    if (is_capture(number)) {
        uses.push_back({nullptr, 0, by.graph});
        return;
    }
    const std::lock_guard guard(by.stream_cache->lock);
    uses.push_back({by.stream_cache, by.stream_cache->point_now(given), nullptr});
}

bool Pool::order_in_capture(const StreamRef& use, const StreamRef& stream) {
    CUevent event = nullptr;
    if (call_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
    const bool ordered = call_.cuEventRecord(event, use.handle) == CUDA_SUCCESS &&
                         call_.cuStreamWaitEvent(stream.handle, event, 0) == CUDA_SUCCESS;
    call_.cuEventDestroy_v2(event);
    return ordered;
}

// What is held no longer is its stream's again. The checker is told of it now: at the free others
// may have used it. Of a stream whose handle may be dead there is no telling.
bool Pool::release_held(bool wait) {
    bool any = false;
    held_blocks_.release(wait, [&](BlockRef block, std::uint32_t number) {
        any = true;
        const std::shared_ptr<StreamCache> stream_cache = known(number).stream_cache;
        if (stream_cache == nullptr) {
            give_idle(block);
            return;
        }
        const std::lock_guard guard(stream_cache->lock);
        stream_cache->make_room(block.slab->index, 1);  // before anybody is told
        if (nvtx_ != nullptr && !is_capture(number)) {
            nvtx_->remove_block(block.address(), block.bytes());
        }
        if (stream_cache->can_record_fence()) {
            checker_.block_freed(block.address(), block.bytes(), stream_cache->stream.handle);
        }
        stream_cache->put(block);
    });
    return any;
}

}  // namespace vramkit::pool
