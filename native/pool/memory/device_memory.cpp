// Memory of the pool: taken from the driver, joined when it is short, mapped ahead of need.
#include "pool/memory/device_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "pool/streams/stream_cache.h"

namespace vramkit::pool {
namespace {

// A new handle has at most this part of what the pool may have, but this limit is never below
// kLeastHandle.
constexpr std::uint64_t kHandlePart = 512;
constexpr std::uint64_t kLeastHandle = 2 * kPage;
// A pool that uses at most this part is small: it cuts handles of up to kSmallCut times the need.
constexpr std::uint64_t kSmallPart = 16;
constexpr std::uint64_t kSmallCut = 8;
// Handles unmapped, or given back, in one maintenance step: about 20 and 40 us each with the pool's
// lock held.
constexpr std::size_t kUnmapsAtOnce = 64;
constexpr std::size_t kReleasesAtOnce = 32;

}  // namespace

bool DeviceMemory::open(const Config& config, Failure& why) {
    addresses_ = config.nvtx ? Addresses::allocate(card_.call, round_up(config.limit, kPage), why)
                             : Addresses::reserve(card_.call, card_.bytes, why);
    if (addresses_ == nullptr) {
        if (config.nvtx && why.kind == Failure::Kind::out_of_memory) {
            why.message = "nvtx takes the limit of " + std::to_string(config.limit) +
                          " bytes at once, and the card has not as much free: lower the limit";
        }
        return false;
    }
    page_map_ = PageMap::over(addresses_->base(), addresses_->bytes());
    if (page_map_ == nullptr) {
        why = Failure::bad_value("no host memory for the pool's table of addresses");
        return false;
    }
    card_.checker.region(addresses_->base(), addresses_->bytes());
    if (config.nvtx) {
        nvtx_ = NvtxMarks::make(addresses_->allocation(), addresses_->allocation_bytes());
    }
    large_ = std::make_unique<LargeBlocks>(*page_map_);
    slabs_ = std::make_unique<Slabs>(*page_map_, records_);
    // Last: is_open() goes by it.
    extents_ = std::make_unique<Extents>(card_.call, card_.device, *addresses_);
    configure(config);
    return true;
}

void DeviceMemory::configure(const Config& config) {
    limit_ = config.limit;
    most_bytes_.store(limit_ > 0 ? std::min(limit_, card_.bytes) : card_.bytes,
                      std::memory_order_relaxed);
    if (extents_ != nullptr) extents_->set_handle_bytes(handle_bytes());
}

// A handle that is cut can neither move nor be released, and a large pool may have to move all its
// memory later: so it cuts no handle that is larger than the request.
std::uint64_t DeviceMemory::cut_up_to(std::uint64_t bytes) const {
    return extents_->mapped() <= most_bytes_ / kSmallPart ? kSmallCut * bytes : bytes;
}

// Small handles can be joined without waste, large ones with few driver calls. Of this size few are
// cut, and the whole pool takes as many calls on a large card as on a small one.
std::uint64_t DeviceMemory::handle_bytes() const {
    return std::max(round_up(most_bytes_ / kHandlePart, kPage), kLeastHandle);
}

std::uint64_t DeviceMemory::may_grow() const {
    const std::uint64_t most = limit_ > 0 ? limit_ : card_.bytes;
    return most - std::min(most, reserved());
}

void DeviceMemory::add_direct(std::uint64_t bytes) {
    direct_bytes_ += bytes;
    peak_reserved_ = std::max(peak_reserved_, reserved());
}

// About a thousandth of the card: a large pool grows seldom, and a segment is small to any program.
std::uint64_t DeviceMemory::next_segment_bytes() const {
    return std::clamp(most_bytes_ / 1024 / kPage * kPage, kPage, Segment::kMost);
}

bool DeviceMemory::add_segment(Failure& why) {
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

void DeviceMemory::note_growth() {
    ++counters_.device_growths;
    peak_reserved_ = std::max(peak_reserved_, reserved());
    grown_ = true;
}

BlockRef DeviceMemory::take_idle(ClassIndex index, std::uint64_t batch) {
    if (is_large(index)) {
        const std::uint64_t bytes = class_bytes(index);
        const std::optional<Extent> extent =
            extents_->take(bytes, with_excess(bytes), cut_up_to(bytes));
        return extent ? large_->make(*extent) : BlockRef{};
    }
    BlockRef block = slabs_->take(index);
    if (block.slab == nullptr && slabs_->make(index, batch)) {
        block = slabs_->take(index);
        look_ahead();
    }
    return block;
}

void DeviceMemory::give_idle(BlockRef block) {
    Slab& slab = *block.slab;
    if (nvtx_ != nullptr) nvtx_->remove_block(block.address(), block.bytes());  // of a graph
    if (!slab.large) {
        if (slabs_->give(block)) free_segments(false);
        return;
    }
    const Extent extent = slab.extent();
    large_->end(slab);
    extents_->give(extent, card_.now());
}

void DeviceMemory::free_segments(bool dissolve_idle) {
    for (const Extent& extent : slabs_->take_free_segments(dissolve_idle)) {
        extents_->give(extent, card_.now());
    }
}

BlockRef DeviceMemory::grow(ClassIndex index, std::uint64_t bytes, std::uint64_t batch,
                            Failure& why) {
    if (!is_large(index)) return add_segment(why) ? take_idle(index, batch) : BlockRef{};
    // If the class does not fit, the exact size may.
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

// If the driver has no more memory, the last resort is to cut handles that are too large.
BlockRef DeviceMemory::put_together(ClassIndex index, std::uint64_t bytes, std::uint64_t batch,
                                    Failure& why) {
    const auto release_and_grow = [&](std::uint64_t room) {
        counters_.released_bytes += extents_->release(room, Extents::kAnyTime);
        return grow(index, bytes, batch, why);
    };
    if (!is_large(index)) {
        BlockRef block = grow(index, bytes, batch, why);
        if (block.slab == nullptr && extents_->idle() > 0) block = release_and_grow(kPage);
        if (block.slab != nullptr) return block;
        const std::optional<Extent> extent = extents_->take(kPage, kPage, kLargestRequest);
        if (!extent) return {};
        slabs_->add_segment(*extent);
        return take_idle(index, batch);
    }
    const std::uint64_t exact = round_up(bytes, kPage);
    const std::uint64_t before = extents_->mapped();
    std::optional<Extent> extent = extents_->take(exact, with_excess(exact), cut_up_to(exact));
    if (!extent) {
        extent = extents_->compose(exact, may_grow(), why);
        if (extents_->mapped() > before) note_growth();
        if (extent) counters_.remapped_bytes += extent->bytes;
        if (extent && extent->bytes > with_excess(exact)) {
            extents_->give(*extent, card_.now());
            extent.reset();
        }
    }
    if (!extent && extents_->movable() + may_grow() >= exact) {
        // With fixed memory, idle extents may be long enough together with the holes beside them.
        const BlockRef block = release_and_grow(is_fixed() ? extents_->idle() : exact);
        if (block.slab != nullptr) return block;
    }
    if (!extent) extent = extents_->take(exact, with_excess(exact), kLargestRequest);
    if (!extent) return {};
    why = {};
    return large_->make(*extent);
}

std::uint64_t DeviceMemory::could_have(ClassIndex index, std::uint64_t card_free) const {
    const std::uint64_t ready = is_large(index) ? 0 : slabs_->idle_blocks(index);
    const std::uint64_t spans = is_large(index) ? 0 : slabs_->free_span_bytes();
    const std::uint64_t left = std::min(card_free, may_grow()) + extents_->idle() + spans;
    return ready + left / class_bytes(index);
}

bool DeviceMemory::preallocate(ClassIndex index, std::uint64_t count, Failure& why) {
    if (is_large(index)) return preallocate_large(class_bytes(index), count, why);
    while (slabs_->idle_blocks(index) < count) {
        if (!slabs_->make(index, count - slabs_->idle_blocks(index)) && !add_segment(why)) {
            return false;
        }
    }
    return true;
}

// All are taken before any is given back, so that none is counted twice.
bool DeviceMemory::preallocate_large(std::uint64_t bytes, std::uint64_t count, Failure& why) {
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
    for (const Extent& extent : ready) extents_->give(extent, card_.now());
    return done;
}

std::uint64_t DeviceMemory::release_idle(std::int64_t idle_before) {
    const std::uint64_t released = extents_->release(~std::uint64_t{0}, idle_before);
    counters_.released_bytes += released;
    return released;
}

std::uint64_t DeviceMemory::release_some(std::int64_t idle_before, bool& more) {
    const std::uint64_t released =
        extents_->release(~std::uint64_t{0}, idle_before, kReleasesAtOnce, &more);
    counters_.released_bytes += released;
    return released;
}

std::uint64_t DeviceMemory::join_idle(Failure& why) {
    free_segments(true);
    const std::uint64_t moved = extents_->join(why);
    counters_.remapped_bytes += moved;
    return moved;
}

bool DeviceMemory::unmap_old() { return extents_->unmap_old(kUnmapsAtOnce); }

void DeviceMemory::unmap_all_old() { extents_->unmap_old(kEveryMapping); }

// So that the thread that needs the next segment finds it mapped.
void DeviceMemory::look_ahead() {
    if (segment_wanted_ || has_segment_ahead()) return;
    segment_wanted_ = newly_wanted_ = true;
}

// Half a segment is enough: a program with few blocks then needs no other.
bool DeviceMemory::has_segment_ahead() const {
    // An extent much longer than a segment is not counted: it may serve large blocks.
    const std::uint64_t bytes = next_segment_bytes();
    return extents_->idle_smaller_than(2 * bytes + 1) + slabs_->free_span_bytes() >= bytes / 2;
}

void DeviceMemory::map_ahead() {
    if (!segment_wanted_) return;
    segment_wanted_ = !has_segment_ahead();
    const std::uint64_t bytes = next_segment_bytes();
    size_t free = 0, total = 0;
    if (!segment_wanted_ || bytes > may_grow()) return;
    if (card_.call.cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) return;
    // Leave the last part of the card to other programs.
    if (free < total / 16) return;
    Failure why;
    if (const std::optional<Extent> extent = extents_->create(bytes, why)) {
        segment_wanted_ = false;
        note_growth();
        extents_->give(*extent, card_.now());
    }
}

void DeviceMemory::give_addresses_back() {
    if (addresses_ == nullptr) return;
    if (nvtx_ != nullptr) nvtx_->clear();  // no heap may remain in memory that is gone
    addresses_->release();
}

void DeviceMemory::give_everything_back() {
    extents_ = nullptr;
    give_addresses_back();
}

void DeviceMemory::forget_driver() {
    direct_bytes_ = 0;
    extents_->forget();
    page_map_->shut();
    addresses_->forget();
}

}  // namespace vramkit::pool
