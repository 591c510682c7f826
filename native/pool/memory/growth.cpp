// Memory of the pool: taken from the driver, put together where it is short, got ready ahead.
#include <algorithm>

#include "base/scopes.h"
#include "pool/pool.h"

namespace vramkit::pool {
namespace {

// Of what the pool may have: the largest handle, and the least that this is.
constexpr std::uint64_t kHandlePart = 512;
constexpr std::uint64_t kLeastHandle = 2 * kPage;
// Up to this part a pool is small, and cuts handles of so many times what it needs.
constexpr std::uint64_t kSmallPart = 16;
constexpr std::uint64_t kSmallCut = 8;

}  // namespace

// Whole handles of how many bytes are cut for so many. What is cut keeps its handle, and later all
// of the pool's memory may have to be put together: so a large pool cuts none for less than itself.
std::uint64_t Pool::cut_up_to(std::uint64_t bytes) const {
    return extents_->mapped() <= most_bytes_ / kSmallPart ? kSmallCut * bytes : bytes;
}

// Small ones are put together without loss, large ones with few driver calls. Of this size few are
// cut, and the whole pool takes as many calls on a large card as on a small one.
std::uint64_t Pool::handle_bytes() const {
    return std::max(round_up(most_bytes_ / kHandlePart, kPage), kLeastHandle);
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
    if (!extent) extent = extents_->take(kPage, Segment::kMost, cut_up_to(kPage));
    if (!extent) return false;
    why = {};
    slabs_->add_segment(*extent);
    return true;
}

void Pool::note_growth() {
    ++slow_.device_growths;
    peak_reserved_ = std::max(peak_reserved_, extents_->mapped() + direct_.bytes());
    if (config_.background) background_thread_.start();
}

// New memory from the driver.
BlockRef Pool::grow(ThreadCache& cache, ClassIndex index, std::uint64_t bytes, Failure& why) {
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
// they go back to the driver and what is needed is taken again; what the driver no longer gives is
// cut out of them.
BlockRef Pool::put_together(ThreadCache& cache, ClassIndex index, std::uint64_t bytes,
                            Failure& why) {
    const auto anew = [&](std::uint64_t room) {
        slow_.released_bytes += extents_->release(room, Extents::kAnyTime);
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
    std::optional<Extent> extent = extents_->take(exact, with_excess(exact), cut_up_to(exact));
    if (!extent) {
        extent = extents_->compose(exact, may_grow(), why);
        if (extents_->mapped() > before) note_growth();
        if (extent) slow_.remapped_bytes += extent->bytes;
        if (extent && extent->bytes > with_excess(exact)) {
            extents_->give(*extent, now());
            extent.reset();
        }
    }
    if (!extent && extents_->movable() + may_grow() >= exact) {
        // Where nothing moves, what is idle may be long enough with the holes beside it.
        const bool flat = addresses_->have_memory();
        const BlockRef block = anew(flat ? extents_->idle() : exact);
        if (block.slab != nullptr) return block;
    }
    if (!extent) extent = extents_->take(exact, with_excess(exact), kLargestRequest);
    if (!extent) return {};
    why = {};
    return large_->make(*extent);
}

std::uint64_t Pool::release_idle(std::int64_t idle_before) {
    const std::uint64_t released = extents_->release(~std::uint64_t{0}, idle_before);
    slow_.released_bytes += released;
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
        why = Failure::closed("the pool");
        return false;
    }
    const SlowPathScope scope(call_, context_);
    const ClassIndex index = class_map_.load(std::memory_order_relaxed)->of(bytes);
    const std::uint64_t each = class_bytes(index);
    // Asked for more than there is, it takes nothing: not all there is, and then fails.
    size_t free = 0, total = 0;
    if (failed(call_.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo_v2", why)) return false;
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
        std::optional<Extent> extent = extents_->take(bytes, with_excess(bytes), cut_up_to(bytes));
        if (!extent) {
            const std::uint64_t before = extents_->mapped();
            extent = bytes > may_grow() ? extents_->compose(bytes, may_grow(), why)
                                        : extents_->create(bytes, why);
            if (extents_->mapped() > before) note_growth();
        }
        if (!extent) extent = extents_->take(bytes, with_excess(bytes), kLargestRequest);
        if (!extent) break;
        ready.push_back(*extent);
    }
    const bool done = ready.size() == count;
    for (const Extent& extent : ready) extents_->give(extent, now());
    return done;
}

}  // namespace vramkit::pool
