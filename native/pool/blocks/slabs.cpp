// Slabs begin and end.
#include "pool/blocks/slabs.h"

#include <utility>

namespace vramkit::pool {

Slab& Slabs::make(ClassIndex index, const Extent& extent) {
    const std::uint64_t block_bytes = class_bytes(index);
    auto made = records_.take(block_bytes, static_cast<std::uint32_t>(extent.bytes / block_bytes));
    Slab& slab = *made;
    slab.address = extent.address;
    slab.bytes = extent.bytes;
    slab.index = index;
    slab.reciprocal = ((std::uint64_t{1} << 32) + block_bytes / kUnit - 1) / (block_bytes / kUnit);
    slab.idle.resize(slab.count);
    for (std::uint32_t i = 0; i < slab.count; ++i) slab.idle[i] = slab.count - 1 - i;
    slabs_.emplace(slab.address, std::move(made));
    list(slab);
    idle_[index] += slab.count;
    page_map_.enter(slab);
    return slab;
}

std::optional<Extent> Slabs::give(BlockRef block) {
    Slab& slab = *block.slab;
    block.block().set(State::idle, 0, 0);
    if (slab.idle.empty()) list(slab);
    slab.idle.push_back(block.number);
    ++idle_[slab.index];
    if (slab.idle.size() < slab.count) return {};
    return end(slab);
}

Extent Slabs::end(Slab& slab) {
    unlist(slab);
    page_map_.remove(slab);
    idle_[slab.index] -= slab.count;
    const Extent extent = slab.extent();
    records_.give(std::move(slabs_.extract(slab.address).mapped()));
    return extent;
}

std::vector<Extent> Slabs::end_untouched() {
    std::vector<Slab*> untouched;
    for (const auto& list : with_idle_) {
        for (Slab* const slab : list) {
            if (slab->idle.size() == slab->count) untouched.push_back(slab);
        }
    }
    std::vector<Extent> extents;
    extents.reserve(untouched.size());
    for (Slab* const slab : untouched) extents.push_back(end(*slab));
    return extents;
}

}  // namespace vramkit::pool
