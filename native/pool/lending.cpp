// Blocks that are used on other streams than the one they are freed on.
#include "pool/pool.h"
#include "pool/scopes.h"

namespace vramkit::pool {

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
    std::vector<StreamRef>& uses = other_uses_[address];
    for (const StreamRef& each : uses) {
        if (each.is(stream)) return true;
    }
    uses.push_back(stream);
    return true;
}

// The stream that the block is freed on waits for the others, and the block is like any other then.
// Where that stream is no more, the host waits.
bool Pool::await_other_uses(BlockRef block, Cache& cache, Failure& why) {
    const std::lock_guard guard(lock_);
    const auto found = other_uses_.find(block.address());
    if (found == other_uses_.end()) return true;  // somebody else frees it, too
    const SlowPathScope scope(call_, context_);
    const bool ended = cache.has_ended();
    for (const StreamRef& other : found->second) {
        if (other.is(cache.stream)) continue;
        const bool lives = numbers_.contains({other.id, other.capture});
        const CUresult result = lives ? await_stream(other, cache.stream, ended)
                                      : await_ended(other, cache.stream, ended);
        if (failed(result, "cuStreamWaitEvent", why)) return false;
    }
    other_uses_.erase(found);
    block.block().change(State::lent, State::live);
    return true;
}

CUresult Pool::await_stream(const StreamRef& other, const StreamRef& stream, bool on_host) {
    const CUevent event = events_.take();
    if (event == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call_.cuEventRecord(event, other.handle);
    if (result == CUDA_SUCCESS) {
        result = on_host ? call_.cuEventSynchronize(event)
                         : call_.cuStreamWaitEvent(stream.handle, event, 0);
    }
    // An event of a capture is the capture's: it may not be used again elsewhere.
    if (other.capture == 0) {
        events_.give(event);
    } else {
        call_.cuEventDestroy_v2(event);
    }
    return result;
}

// Its last mark is all that is left of it.
CUresult Pool::await_ended(const StreamRef& other, const StreamRef& stream, bool on_host) {
    for (const std::uint32_t number : ending_) {
        Shelf& shelf = *known(number).shelf;
        if (!shelf.stream.is(other)) continue;
        const std::lock_guard guard(shelf.lock);
        const bool done =
            on_host ? shelf.marks.wait() : shelf.marks.wait_on_gpu(shelf.last_mark, stream.handle);
        return done ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    }
    return CUDA_SUCCESS;
}

}  // namespace vramkit::pool
