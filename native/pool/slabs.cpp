// Slabs are made on the lowest free spans and dissolve when their last block comes back, so that
// segments at the far end become free.
#include "pool/slabs.h"

#include <algorithm>

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kLargestSlab = kPage;

}  // namespace

bool Slabs::make(ClassIndex index, std::uint64_t count) {
    const std::uint64_t block_bytes = class_bytes(index);
    const std::uint64_t most = std::max<std::uint64_t>(1, kLargestSlab / block_bytes);
    const std::uint64_t bytes =
        round_up(block_bytes * std::clamp<std::uint64_t>(count, 1, most), kSpan);
    const std::size_t spans = bytes / kSpan;
    for (const auto& [address, segment] : segments_) {
        if (segment->free < spans) continue;
        const std::size_t at = segment->find(spans);
        if (at == segment->spans) continue;
        auto slab = std::make_unique<Slab>();
        slab->address = address + at * kSpan;
        slab->bytes = bytes;
        slab->block_bytes = block_bytes;
        slab->index = index;
        slab->segment = segment.get();
        // Spans are whole; the slab has as many blocks as they hold.
        slab->count = static_cast<std::uint32_t>(bytes / block_bytes);
        slab->reciprocal =
            ((std::uint64_t{1} << 32) + block_bytes / kUnit - 1) / (block_bytes / kUnit);
        slab->make_records();
        slab->idle.resize(slab->count);
        for (std::uint32_t i = 0; i < slab->count; ++i) slab->idle[i] = slab->count - 1 - i;
        for (std::size_t i = 0; i < spans; ++i) segment->used.set(at + i);
        segment->free -= spans;
        idle_bytes_ += slab->count * block_bytes;
        list(*slab);
        pages_.enter(*slab);
        slabs_.emplace(slab->address, std::move(slab));
        return true;
    }
    return false;
}

bool Slabs::dissolve(Slab& slab) {
    Segment& segment = *slab.segment;
    unlist(slab);
    pages_.remove(slab);
    idle_bytes_ -= slab.count * slab.block_bytes;
    const std::size_t at = (slab.address - segment.extent.address) / kSpan;
    const std::size_t spans = slab.bytes / kSpan;
    for (std::size_t i = 0; i < spans; ++i) segment.used.reset(at + i);
    segment.free += spans;
    slabs_.erase(slab.address);
    return segment.free == segment.spans;
}

void Slabs::add_segment(Extent extent) {
    auto segment = std::make_unique<Segment>();
    segment->spans = segment->free = extent.bytes / kSpan;
    segment->extent = std::move(extent);
    mapped_ += segment->extent.bytes;
    const std::uint64_t address = segment->extent.address;
    segments_.emplace(address, std::move(segment));
}

std::vector<Extent> Slabs::take_free_segments(bool dissolve_idle) {
    if (dissolve_idle) {
        std::vector<Slab*> whole;
        for (const auto& [address, slab] : slabs_) {
            if (slab->idle.size() == slab->count) whole.push_back(slab.get());
        }
        for (Slab* slab : whole) dissolve(*slab);
    }
    std::vector<Extent> free;
    for (auto each = segments_.begin(); each != segments_.end();) {
        Segment& segment = *each->second;
        if (segment.free != segment.spans) {
            ++each;
            continue;
        }
        mapped_ -= segment.extent.bytes;
        free.push_back(std::move(segment.extent));
        each = segments_.erase(each);
    }
    return free;
}

std::vector<Extent> Slabs::take_all_segments() {
    std::vector<Extent> all;
    for (auto& [address, segment] : segments_) all.push_back(std::move(segment->extent));
    segments_.clear();
    mapped_ = 0;
    return all;
}

std::size_t Slabs::idle_blocks(ClassIndex index) const {
    std::size_t count = 0;
    for (const Slab* slab : with_idle_[index]) count += slab->idle.size();
    return count;
}

std::uint64_t Slabs::free_span_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [address, segment] : segments_) bytes += segment->free * kSpan;
    return bytes;
}

}  // namespace vramkit::pool
