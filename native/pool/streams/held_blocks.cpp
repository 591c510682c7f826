// Frees of blocks that several streams use, or that captures are involved in.
#include "pool/streams/held_blocks.h"

#include "base/rules.h"

namespace vramkit::pool {

// Which stream has the block next:
//   - A plain block, freed on a plain stream: that stream.
//   - A graph's block, freed inside its capture: the stream of that capture.
//   - A graph's block, freed elsewhere: it stays with the graph, and is held until the work that
//     the freeing stream has now is done.
//   - A plain block, freed inside a capture: its own stream, and it is held until the graph is
//     gone.
std::optional<FreePlan> HeldBlocks::plan(BlockRef block, const std::optional<StreamRef>& stream,
                                         Failure& why) {
    const SlowPathScope scope = card_.enter();
    const std::uint32_t owner = block.block().stream();
    FreePlan plan{owner, {}};
    std::optional<StreamRef> at = stream;
    if (!at && is_capture(owner)) at = stream_of_capture(owner);
    if (at) {
        const std::optional<std::uint32_t> given = streams_.number_of(*at, why);
        if (!given) return {};
        const bool same_capture =
            is_capture(owner) && is_capture(*given) && streams_[owner].capture == at->capture;
        if (same_capture || (!is_capture(owner) && !is_capture(*given))) {
            if (!is_broken(Rule::given_stream_counts_on_slow_path)) plan.home = *given;
        } else if (*given != owner && !is_broken(Rule::graph_waits_for_who_frees_its_block)) {
            add_use(plan.uses, *given, true);
        }
    } else if (is_capture(owner)) {
        plan.uses.push_back({nullptr, 0, nullptr, card_waits_});
    }
    if (block.block().state() != State::shared) return plan;
    const auto noted = noted_.find(block.address());
    if (noted == noted_.end()) return plan;
    for (const std::uint32_t number : noted->second) {
        if (number == plan.home) continue;
        // Inside one capture the order is recorded in the graph.
        const bool in_capture =
            at && at->capture != 0 && is_capture(number) && streams_[number].capture == at->capture;
        if (in_capture && order_in_capture(streams_[number].cache->stream, *at)) continue;
        if (!is_broken(Rule::held_until_other_streams_are_done)) add_use(plan.uses, number, false);
    }
    return plan;
}

// The stream that a capture was made on, as it is now; none if its handle may be invalid.
std::optional<StreamRef> HeldBlocks::stream_of_capture(std::uint32_t number) const {
    const StreamRecord& capture = streams_[number];
    if (!capture.durable) return {};
    StreamRef stream{capture.handle};
    stream.durable = true;
    if (identify(card_.call, stream) != CUDA_SUCCESS) return {};
    return stream;
}

// given: the caller gave the stream, so its handle is valid.
void HeldBlocks::add_use(std::vector<Use>& uses, std::uint32_t number, bool given) const {
    const StreamRecord& by = streams_[number];
    if (by.cache == nullptr) return;  // it has ended, and its work is done
    if (is_capture(number)) {
        uses.push_back({nullptr, 0, by.graph});
        return;
    }
    const std::lock_guard guard(by.cache->lock);
    uses.push_back({by.cache, by.cache->point_now(given), nullptr});
}

bool HeldBlocks::order_in_capture(const StreamRef& use, const StreamRef& stream) const {
    const DriverTable& call = card_.call;
    CUevent event = nullptr;
    if (call.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
    const bool ordered = call.cuEventRecord(event, use.handle) == CUDA_SUCCESS &&
                         call.cuStreamWaitEvent(stream.handle, event, 0) == CUDA_SUCCESS;
    call.cuEventDestroy_v2(event);
    return ordered;
}

void HeldBlocks::Held::drop_uses() {
    for (std::size_t i = 0; i < uses.size();) {
        if (uses[i].is_over()) {
            uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            ++i;
        }
    }
}

bool HeldBlocks::release() {
    for (Held& held : held_) held.drop_uses();
    std::partition(held_.begin(), held_.end(), [](const Held& held) { return !held.uses.empty(); });
    bool any = false;
    while (!held_.empty() && held_.back().uses.empty()) {
        const BlockRef block = held_.back().block;
        const std::uint64_t bytes = block.bytes();
        const auto drop = [&] {
            held_.pop_back();
            bytes_ -= bytes;
        };
        try {
            give_to_stream(block, held_.back().number);
        } catch (...) {
            // Its state says whether it is still held.
            if (block.block().state() != State::held) drop();
            throw;
        }
        drop();
        any = true;
    }
    return any;
}

// The checker is told now, not at the free: until now other streams might have used the block. It
// is not told about a stream whose handle may be invalid.
void HeldBlocks::give_to_stream(BlockRef block, std::uint32_t number) {
    const std::shared_ptr<StreamCache> cache = streams_[number].cache;
    if (cache == nullptr) {
        memory_.give_idle(block);
        return;
    }
    const std::lock_guard guard(cache->lock);
    cache->make_room(block.slab->index, 1);  // may throw: before the tools are told
    if (memory_.nvtx() != nullptr && !is_capture(number)) {
        memory_.nvtx()->remove_block(block.address(), block.bytes());
    }
    if (cache->can_record_fence()) {
        card_.checker.block_freed(block.address(), block.slab->asked_for(block.block()),
                                  cache->stream.handle);
    }
    cache->put(block);
}

std::uint64_t HeldBlocks::bytes_awaiting_card() const {
    std::uint64_t bytes = 0;
    for (const Held& held : held_) {
        const auto awaits = [](const Use& use) { return use.awaits_card(); };
        if (std::any_of(held.uses.begin(), held.uses.end(), awaits)) bytes += held.block.bytes();
    }
    return bytes;
}

void HeldBlocks::end_card_wait(std::uint64_t wait) {
    for (Held& held : held_) {
        std::erase_if(held.uses,
                      [&](const Use& use) { return use.awaits_card() && use.since <= wait; });
    }
}

}  // namespace vramkit::pool
