// Slabs are made on the lowest free spans and dissolve when their last block comes back, so that
// segments at high addresses become free.
#include "pool/blocks/slabs.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kLargestSlab = kPage;

}  // namespace

std::unique_ptr<Slab> SlabRecords::take(std::uint64_t block_bytes, std::uint32_t count) {
    const std::uint8_t spread = Slab::spread_of(block_bytes);
    const auto bits = static_cast<std::uint8_t>(std::bit_width(count - 1));
    auto& list = spare_[spread][bits];
    std::unique_ptr<Slab> slab;
    if (list.empty()) {
        // Room for all of them, so that give() needs no memory.
        list.reserve(++made_[spread][bits]);
        slab = std::make_unique<Slab>(spread, bits);
    } else {
        slab = std::move(list.back());
        list.pop_back();
    }
    slab->block_bytes = block_bytes;
    slab->count = count;
    return slab;
}

void SlabRecords::give(std::unique_ptr<Slab> slab) {
    for (std::uint32_t i = 0; i < slab->count; ++i) slab->record(i).set(State::idle, 0, 0);
    slab->idle.clear();
    slab->segment = nullptr;
    slab->large = false;
    slab->reciprocal = 0;
    spare_[slab->spread][slab->capacity_bits].push_back(std::move(slab));
}

void Slabs::use(Segment& segment, std::size_t at, std::size_t spans, bool used) {
    const std::uint64_t address = segment.extent.address;
    for (std::size_t i = 0; i < spans; ++i) segment.used.set(at + i, used);
    if (used) {
        segment.free -= spans;
        free_spans_ -= spans;
        free_.erase(address);
        if (segment.free == 0) with_room_.erase(address);
    } else {
        segment.free += spans;
        free_spans_ += spans;
        with_room_.emplace(address, &segment);
        if (segment.free == segment.spans) free_.emplace(address, &segment);
    }
}

bool Slabs::make(ClassIndex index, std::uint64_t count) {
    const std::uint64_t block_bytes = class_bytes(index);
    const std::uint64_t most = std::max<std::uint64_t>(1, kLargestSlab / block_bytes);
    const std::uint64_t bytes =
        round_up(block_bytes * std::clamp<std::uint64_t>(count, 1, most), kSpan);
    const std::size_t spans = bytes / kSpan;
    for (const auto& [address, segment] : with_room_) {
        if (segment->free < spans) continue;
        const std::size_t at = segment->find(spans);
        if (at == segment->spans) continue;
        // Spans are whole; the slab has as many blocks as they hold.
        auto slab = records_.take(block_bytes, static_cast<std::uint32_t>(bytes / block_bytes));
        slab->address = address + at * kSpan;
        slab->bytes = bytes;
        slab->index = index;
        slab->segment = segment;
        slab->reciprocal =
            ((std::uint64_t{1} << 32) + block_bytes / kUnit - 1) / (block_bytes / kUnit);
        slab->idle.resize(slab->count);
        for (std::uint32_t i = 0; i < slab->count; ++i) slab->idle[i] = slab->count - 1 - i;
        idle_[index] += slab->count;
        list(*slab);
        page_map_.enter(*slab);
        untouched_.emplace(slab->address, slab.get());
        slabs_.emplace(slab->address, std::move(slab));
        use(*segment, at, spans, true);  // last: it may change the map that the loop walks
        return true;
    }
    return false;
}

bool Slabs::dissolve(Slab& slab) {
    Segment& segment = *slab.segment;
    unlist(slab);
    page_map_.remove(slab);
    idle_[slab.index] -= slab.count;
    use(segment, (slab.address - segment.extent.address) / kSpan, slab.bytes / kSpan, false);
    records_.give(std::move(slabs_.extract(slab.address).mapped()));
    return segment.free == segment.spans;
}

void Slabs::add_segment(Extent extent) {
    auto segment = std::make_unique<Segment>();
    segment->spans = segment->free = extent.bytes / kSpan;
    segment->extent = extent;
    free_spans_ += segment->spans;
    const std::uint64_t address = segment->extent.address;
    with_room_.emplace(address, segment.get());
    free_.emplace(address, segment.get());
    segments_.emplace(address, std::move(segment));
}

std::vector<Extent> Slabs::take_free_segments(bool dissolve_idle) {
    if (dissolve_idle) {
        // Other wholly idle slabs dissolved when their last block came back.
        for (const auto& [address, slab] : untouched_) dissolve(*slab);
        untouched_.clear();
    }
    std::vector<Extent> taken;
    for (const auto& [address, segment] : free_) {
        free_spans_ -= segment->spans;
        taken.push_back(segment->extent);
        with_room_.erase(address);
        segments_.erase(address);
    }
    free_.clear();
    return taken;
}

}  // namespace vramkit::pool
