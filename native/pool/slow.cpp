// Where memory comes from when neither cache nor shelf has it, and what happens when it is short.
#include <algorithm>

#include "pool/pool.h"
#include "pool/scopes.h"

namespace vramkit::pool {
namespace {

// Other streams' blocks, looked at before memory is taken from the driver. Each question costs as
// much as the rest of the path, and the oldest mark is the likeliest to have passed.
constexpr int kQuestions = 1;
// Of what the pool may have: up to there it cuts handles.
constexpr std::uint64_t kCuttingPart = 16;
// It cuts nothing smaller out of a handle than this part: what is cut keeps the handle.
constexpr std::uint64_t kLeastCut = 8;

}  // namespace

BlockRef Pool::malloc_slow(Cache& cache, ClassIndex index, std::uint64_t bytes, bool may_wait,
                           Failure& why) {
    const std::lock_guard guard(lock_);
    if (closed()) {
        why = Failure::closed();
        return {};
    }
    const SlowPathScope scope(call_, context_);
    mark_while_given(cache);
    if (release_held(false)) {
        const BlockRef own = take_from_shelf(cache, index);
        if (own.slab != nullptr) return own;
    }
    // For the one that is handed out, while it is nobody's.
    BlockRef block;
    const auto found = [&](BlockRef one, std::uint64_t Stats::* counter) {
        block = one;
        if (block.slab == nullptr) return false;
        ++(slow_.*counter);
        return true;
    };
    if (found(take_idle(cache, index), &Stats::idle_hits)) return block;
    if (found(take_of_others(cache, index), &Stats::other_hits)) return block;
    // What can never be served costs the others nothing: no cache is emptied for it.
    if (bytes > most_bytes_) {
        why = Failure::out_of_memory();
        why.message = explain(bytes, why);
        return {};
    }
    if (found(grow(cache, index, bytes, why), &Stats::growth_hits)) return block;
    if (why.kind != Failure::Kind::out_of_memory) return {};

    // Short of memory: what idle threads keep, and memory of other classes and streams.
    const auto gather = [&](Wait wait) {
        reclaim_caches();
        mark_while_given(cache);
        collect_all(wait);
        free_segments(true);
        return found(take_idle(cache, index), &Stats::idle_hits) ||
               found(put_together(cache, index, bytes, why), &Stats::remap_hits);
    };
    if (gather(Wait::no)) return block;
    if (may_wait && why.kind == Failure::Kind::out_of_memory) {
        // A block of this class whose work is not done: the stream waits for it, not the host.
        if (found(take_after_gpu_wait(cache, index), &Stats::wait_hits)) return block;
        if (gather(Wait::for_streams)) return block;
    }
    why.message = explain(bytes, why);
    return {};
}

// The stream was given to this call, so its handle is good: what it has unmarked gets its mark, for
// others to have.
void Pool::mark_while_given(Cache& cache) {
    if (cache.shelf == nullptr || cache.stream.told || cache.stream.capture != 0) return;
    const std::lock_guard guard(cache.shelf->lock);
    if (!cache.shelf->ended) cache.shelf->mark_here();
}

// Mapped memory that is nobody's. No driver call. Small blocks come in batches: what is not handed
// out now goes into the cache.
BlockRef Pool::take_idle(Cache& cache, ClassIndex index) {
    if (is_large(index)) {
        const std::uint64_t bytes = class_bytes(index);
        const std::optional<Extent> extent =
            extents_->take(bytes, with_excess(bytes), cut_up_to(bytes));
        return extent ? large_->make(*extent) : BlockRef{};
    }
    BlockRef first = slabs_->take(index);
    if (first.slab == nullptr && slabs_->make(index, config_.batch_alloc_count)) {
        first = slabs_->take(index);
        want_segment();
    }
    if (first.slab == nullptr) return {};
    const Cache::Word word(cache);
    for (std::size_t more = cache.ended ? 0 : room_for(cache, index); more > 0; --more) {
        if (!cache.try_to_make_room(index)) break;
        const BlockRef block = slabs_->take(index);
        if (block.slab == nullptr) break;
        block.block().set(State::cached, cache.number, 0);
        cache.push(block);
    }
    return first;
}

void Pool::give_idle(BlockRef block) {
    Slab& slab = *block.slab;
    if (nvtx_ != nullptr) nvtx_->remove_block(block.address(), block.bytes());  // of a graph
    if (!slab.large) {
        if (slabs_->give(block)) free_segments(false);
        return;
    }
    const Extent extent = slab.extent();
    large_->end(slab);
    extents_->give(extent, now());
}

void Pool::free_segments(bool dissolve_idle) {
    for (const Extent& extent : slabs_->take_free_segments(dissolve_idle)) {
        extents_->give(extent, now());
    }
}

BlockRef Pool::take_of_others(const Cache& cache, ClassIndex index) {
    int questions = kQuestions;
    for (Known& each : streams_) {
        if (each.shelf == nullptr || each.shelf == cache.shelf) continue;
        Shelf& shelf = *each.shelf;
        // Somebody is at it: not worth a wait.
        const std::unique_lock guard(shelf.lock, std::try_to_lock);
        if (!guard || shelf.bins[index].blocks.empty()) continue;
        const Marks::Number oldest = shelf.bins[index].blocks.front().mark;
        if (!shelf.marks.has_passed(oldest) && questions > 0) {
            --questions;
            if (!shelf.marks.is_recorded(oldest)) shelf.mark();
            shelf.marks.ask();
        }
        std::vector<BlockRef> blocks;
        shelf.take_passed(index, 1, blocks);
        if (!blocks.empty()) return blocks.front();
    }
    return {};
}

BlockRef Pool::take_after_gpu_wait(const Cache& cache, ClassIndex index) {
    if (cache.shelf == nullptr || cache.stream.capture != 0) return {};
    for (Known& each : streams_) {
        if (each.shelf == nullptr || each.shelf == cache.shelf) continue;
        Shelf& shelf = *each.shelf;
        const std::lock_guard guard(shelf.lock);
        // The oldest is done first.
        const BlockRef block = shelf.take_oldest(index, cache.stream.handle);
        if (block.slab != nullptr) return block;
    }
    return {};
}

// Handles of how many bytes are cut for so many. As long as the pool is small: later all of its
// memory may have to be put together, and handles that are in use in part cannot be.
std::uint64_t Pool::cut_up_to(std::uint64_t bytes) const {
    return extents_->mapped() <= most_bytes_ / kCuttingPart ? kLeastCut * bytes : 0;
}

// Bytes that may still be taken from the driver.
std::uint64_t Pool::may_grow() const {
    const std::uint64_t most = config_.limit > 0 ? config_.limit : card_bytes_;
    const std::uint64_t held = extents_->mapped() + direct_.bytes();
    return most - std::min(most, held);
}

// About a thousandth of what there is: few growths serve a large pool, and no program notices one.
std::uint64_t Pool::next_segment_bytes() const {
    return std::clamp(most_bytes_ / 1024 / kPage * kPage, kPage, Segment::kMost);
}

bool Pool::add_segment(Failure& why) {
    const std::uint64_t bytes = next_segment_bytes();
    std::optional<Extent> extent =
        extents_->take(bytes, std::min(2 * bytes, Segment::kMost), cut_up_to(bytes));
    for (const std::uint64_t size : {bytes, kPage}) {
        if (extent) break;
        if (size > may_grow()) {
            why = Failure::out_of_memory();
        } else if (extent = extents_->create(size, why); extent) {
            note_growth();
        } else if (why.kind != Failure::Kind::out_of_memory) {
            return false;
        }
    }
    if (!extent) extent = extents_->take(kPage, Segment::kMost, 0);
    if (!extent) return false;
    why = {};
    slabs_->add_segment(*extent);
    return true;
}

void Pool::note_growth() {
    ++slow_.device_growths;
    peak_reserved_ = std::max(peak_reserved_, extents_->mapped() + direct_.bytes());
}

// New memory from the driver.
BlockRef Pool::grow(Cache& cache, ClassIndex index, std::uint64_t bytes, Failure& why) {
    if (!is_large(index)) return add_segment(why) ? take_idle(cache, index) : BlockRef{};
    // Where the class does not fit, what was asked for may.
    for (const std::uint64_t size : {class_bytes(index), round_up(bytes, kPage)}) {
        if (size > may_grow()) {
            why = Failure::out_of_memory();
            continue;
        }
        if (std::optional<Extent> extent = extents_->create(size, why)) {
            note_growth();
            why = {};
            return large_->make(*extent);
        }
        if (why.kind != Failure::Kind::out_of_memory) return {};
    }
    return {};
}

// Idle memory of other sizes, mapped side by side. Where its handles are too large for the request,
// they go back to the driver and what is needed is taken anew; what the driver no longer gives is
// cut out of them.
BlockRef Pool::put_together(Cache& cache, ClassIndex index, std::uint64_t bytes, Failure& why) {
    const auto anew = [&](std::uint64_t room) {
        slow_.returned += extents_->release(room, Extents::kAnyTime);
        return grow(cache, index, bytes, why);
    };
    if (!is_large(index)) {
        BlockRef block = grow(cache, index, bytes, why);
        if (block.slab == nullptr && extents_->idle() > 0) block = anew(kPage);
        if (block.slab != nullptr) return block;
        const std::optional<Extent> extent = extents_->take(kPage, kPage, kLargestRequest);
        if (!extent) return {};
        slabs_->add_segment(*extent);
        return take_idle(cache, index);
    }
    const std::uint64_t exact = round_up(bytes, kPage);
    const std::uint64_t before = extents_->mapped();
    std::optional<Extent> extent = extents_->take(exact, with_excess(exact), 0);
    if (!extent) {
        extent = extents_->compose(exact, may_grow(), why);
        if (extent) slow_.moved += extent->bytes;
        if (extents_->mapped() > before) note_growth();
    }
    if (!extent && extents_->idle() + may_grow() >= exact) {
        // Where nothing moves, what is idle may be long enough with the holes beside it.
        const bool flat = addresses_->have_memory();
        const BlockRef block = anew(flat ? extents_->idle() : exact);
        if (block.slab != nullptr) return block;
        extent = extents_->take(exact, with_excess(exact), kLargestRequest);
    }
    if (!extent) return {};
    why = {};
    return large_->make(*extent);
}

std::uint64_t Pool::release_idle(std::int64_t idle_before) {
    const std::uint64_t released = extents_->release(~std::uint64_t{0}, idle_before);
    slow_.returned += released;
    return released;
}

bool Pool::preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why) {
    if (bytes == 0 || bytes > kLargestRequest || count == 0) {
        why = Failure::bad_value("preallocate takes blocks of 1 to " +
                                 std::to_string(kLargestRequest) + " bytes, and at least one");
        return false;
    }
    const std::lock_guard guard(lock_);
    if (closed()) {
        why = Failure::closed();
        return false;
    }
    const SlowPathScope scope(call_, context_);
    const ClassIndex index = class_map_.load(std::memory_order_relaxed)->of(bytes);
    const std::uint64_t each = class_bytes(index);
    // Asked for more than there is, it takes nothing: not all there is, and then fails.
    size_t free = 0, total = 0;
    call_.cuMemGetInfo_v2(&free, &total);
    const std::uint64_t ready = is_large(index) ? 0 : slabs_->idle_blocks(index);
    const std::uint64_t spans = is_large(index) ? 0 : slabs_->free_span_bytes();
    const std::uint64_t left = std::min<std::uint64_t>(free, may_grow()) + extents_->idle() + spans;
    if (count > ready && (count - ready) > left / each) {
        why = Failure::out_of_memory();
        why.message = std::to_string(count) + " blocks: " + explain(bytes, why);
        return false;
    }
    bool done = true;
    if (is_large(index)) {
        done = preallocate_large(each, count, why);
    } else {
        while (done && slabs_->idle_blocks(index) < count) {
            done = slabs_->make(index, count - slabs_->idle_blocks(index)) || add_segment(why);
        }
    }
    if (!done && why.message.empty()) why.message = explain(bytes, why);
    return done;
}

// Taken and given back together, so that none is counted twice.
bool Pool::preallocate_large(std::uint64_t bytes, std::uint64_t count, Failure& why) {
    std::vector<Extent> ready;
    while (ready.size() < count) {
        std::optional<Extent> extent = extents_->take(bytes, with_excess(bytes), kLeastCut * bytes);
        if (!extent) {
            const std::uint64_t before = extents_->mapped();
            extent = bytes > may_grow() ? extents_->compose(bytes, may_grow(), why)
                                        : extents_->create(bytes, why);
            if (extents_->mapped() > before) note_growth();
        }
        if (!extent) break;
        ready.push_back(*extent);
    }
    const bool done = ready.size() == count;
    for (const Extent& extent : ready) extents_->give(extent, now());
    return done;
}

}  // namespace vramkit::pool
