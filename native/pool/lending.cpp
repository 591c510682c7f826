// Who else uses a block, and when that is over.
#include "pool/lending.h"

#include <algorithm>

#include "pool/pool.h"
#include "pool/scopes.h"

namespace vramkit::pool {

Lending::~Lending() { pass_all(); }

void Lending::note(std::uint64_t address, const StreamRef& stream) {
    std::vector<StreamRef>& uses = noted_[address];
    const auto same = [&](const StreamRef& each) { return each.is(stream); };
    if (std::none_of(uses.begin(), uses.end(), same)) uses.push_back(stream);
}

std::vector<Lending::Awaited> Lending::take(std::uint64_t address, const StreamRef& freed_on) {
    std::vector<Awaited> uses;
    const auto found = noted_.find(address);
    if (found == noted_.end()) return uses;
    for (const StreamRef& each : found->second) {
        if (!each.is(freed_on)) uses.push_back({each, nullptr, nullptr});
    }
    noted_.erase(found);
    return uses;
}

void Lending::record(Awaited& use) {
    const DriverTable& call = events_.call();
    if (is_captured(call, use.stream.handle)) return;
    const CUevent event = events_.take();
    if (event == nullptr) return;
    if (call.cuEventRecord(event, use.stream.handle) != CUDA_SUCCESS) {
        events_.give(event);
    } else if (is_captured(call, use.stream.handle)) {
        call.cuEventDestroy_v2(event);
    } else {
        use.event = event;
    }
}

void Lending::hold(BlockRef block, std::uint32_t number, std::vector<Awaited> uses) {
    bytes_ += block.bytes();
    held_.push_back({block, number, std::move(uses)});
}

bool Lending::is_over(Awaited& use, bool wait) {
    if (use.ended != nullptr) {
        Shelf& shelf = *use.ended;
        const std::lock_guard guard(shelf.lock);
        wait ? static_cast<void>(shelf.marks.wait()) : shelf.marks.ask();
        return shelf.marks.has_passed(shelf.last_mark);
    }
    if (use.event == nullptr) record(use);
    if (use.event == nullptr) return false;
    const DriverTable& call = events_.call();
    const CUresult state = wait ? call.cuEventSynchronize(use.event) : call.cuEventQuery(use.event);
    if (state != CUDA_SUCCESS) return false;
    events_.give(use.event);
    return true;
}

void Lending::pass_all() {
    for (Held& held : held_) {
        for (const Awaited& use : held.uses) {
            if (use.event != nullptr) events_.give(use.event);
        }
        held.uses.clear();
    }
}

void Lending::forget() {
    for (Held& held : held_) held.uses.clear();
}

bool Pool::also_used_on(std::uint64_t address, const StreamRef& stream, Failure& why) {
    BlockRef block;
    if (find_live(address, {}, block, why) == 0) return false;
    // What goes back by cuMemFree waits for every stream.
    if (block.slab == nullptr) return true;
    const std::lock_guard guard(lock_);
    const std::optional<std::uint32_t> number = number_of(stream, why);
    if (!number) return false;
    if (*number == block.block().stream()) return true;
    if (!block.block().change(State::live, State::lent) && block.block().state() != State::lent) {
        why = Failure::bad_value("the block is not in use: freed twice?");
        return false;
    }
    lending_.note(address, stream);
    return true;
}

// Frees a lent block on the stream of a cache. False and the reason: somebody else does, too.
bool Pool::free_lent(BlockRef block, std::uint64_t bytes, Cache& cache, Failure& why) {
    const std::lock_guard guard(lock_);
    if (!block.block().change(State::lent, State::held)) {
        why = Failure::bad_value("the block is not in use: freed twice?");
        return false;
    }
    const SlowPathScope scope(call_, context_);
    auto uses = lending_.take(block.address(), cache.stream);
    std::erase_if(uses, [&](Lending::Awaited& use) {
        if (!numbers_.contains({use.stream.id, use.stream.capture})) {
            // Its last mark is all that is left of it; of one long gone, nothing.
            for (const std::uint32_t number : ending_) {
                if (known(number).shelf->stream.is(use.stream)) use.ended = known(number).shelf;
            }
            return use.ended == nullptr;
        }
        // Inside a capture the order becomes part of the graph.
        return use.stream.capture != 0 && order_in_capture(use.stream, cache.stream);
    });
    for (Lending::Awaited& use : uses) {
        if (use.ended == nullptr) lending_.record(use);
    }
    if (nvtx_ != nullptr) mark_end_of_use(cache, block);
    cache.take_for_sure();
    count_free(cache, bytes);
    cache.leave();
    lending_.hold(block, cache.number, std::move(uses));
    release_held(false);
    return true;
}

bool Pool::order_in_capture(const StreamRef& use, const StreamRef& stream) {
    CUevent event = nullptr;
    if (call_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
    const bool ordered = call_.cuEventRecord(event, use.handle) == CUDA_SUCCESS &&
                         call_.cuStreamWaitEvent(stream.handle, event, 0) == CUDA_SUCCESS;
    call_.cuEventDestroy_v2(event);
    return ordered;
}

// What is held no longer is its stream's again. The checker is told of it now: at the free, work of
// the other streams was under way. Of a stream whose handle may be dead there is no telling.
bool Pool::release_held(bool wait) {
    bool any = false;
    lending_.release(wait, [&](BlockRef block, std::uint32_t number) {
        any = true;
        const std::shared_ptr<Shelf> shelf = known(number).shelf;
        if (shelf == nullptr) {
            give_idle(block);
            return;
        }
        const std::lock_guard guard(shelf->lock);
        if (block_freed_ != nullptr && shelf->can_mark()) {
            block_freed_(block.address(), block.bytes(), shelf->stream.handle);
        }
        shelf->put(block);
    });
    return any;
}

}  // namespace vramkit::pool
