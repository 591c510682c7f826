// Large blocks that a stream has freed, in other sizes than they had: joined where they are
// neighbours, and cut. The stream may have all of it at once, so nobody waits and the driver is not
// called.
#include <algorithm>
#include <new>
#include <span>
#include <vector>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

constexpr std::size_t kSpareRecords = 64;  // of a shelf

struct Place {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    ClassIndex index = 0;
    std::uint32_t at = 0;  // in the bin of its class
};

std::vector<Place> by_address(const Shelf& shelf) {
    std::vector<Place> places;
    places.reserve(shelf.large_blocks);
    for (ClassIndex index = shelf.next_filled(kFirstLarge); index < kClasses;
         index = shelf.next_filled(index + 1)) {
        const auto& blocks = shelf.bins[index].blocks;
        for (std::uint32_t at = 0; at < blocks.size(); ++at) {
            const Extent extent = blocks[at].block.slab->extent();
            places.push_back({extent.address, extent.end(), index, at});
        }
    }
    std::ranges::sort(places, {}, &Place::begin);
    return places;
}

// What lies side by side becomes one block, behind the newest of its marks.
void join_neighbours(Shelf& shelf, LargeBlocks& large) {
    const std::vector<Place> places = by_address(shelf);
    std::vector<std::span<const Place>> stretches;
    for (std::size_t first = 0, next = 1; first < places.size(); first = next++) {
        while (next < places.size() && places[next].begin == places[next - 1].end) ++next;
        if (next - first > 1) stretches.push_back(std::span(places).subspan(first, next - first));
    }
    shelf.fresh = 0;
    if (stretches.empty()) return;
    for (const auto& stretch : stretches) {
        const std::uint64_t bytes = stretch.back().end - stretch.front().begin;
        shelf.make_room(class_served_by(bytes), stretches.size());
    }
    std::vector<Shelf::Shelved> joined;
    joined.reserve(stretches.size());
    std::vector<BlockRef> blocks;
    blocks.reserve(places.size());
    shelf.spare.reserve(shelf.spare.size() + places.size());
    for (const auto& stretch : stretches) {
        blocks.clear();
        Marks::Number newest = 0;
        for (const Place& place : stretch) {
            const auto [block, mark] = shelf.take_leaving_gap(place.index, place.at);
            blocks.push_back(block);
            newest = std::max(newest, mark);
        }
        joined.push_back({large.join(blocks, shelf.spare), newest});
    }
    shelf.close_gaps();
    for (const Shelf::Shelved& each : joined) shelf.put_back(each);
    large.keep(shelf.spare, kSpareRecords);
}

struct Wanted {
    ClassIndex index = 0;
    const Borders& borders;
    std::uint64_t cut_up_to = 0;
    std::uint64_t bytes = class_bytes(index);

    // Whether the front of a block serves: as it is, or cut off without much loss.
    bool is_front_of(const Extent& block) const {
        return block.bytes <= with_excess(bytes) ||
               borders.may_cut(block, block.address + bytes, cut_up_to);
    }
};

// A block of the smallest class that has one, the newest.
Shelf::Shelved take_smallest(Shelf& shelf, const Wanted& wanted) {
    for (ClassIndex index = shelf.next_filled(wanted.index); index < kClasses;
         index = shelf.next_filled(index + 1)) {
        const auto& blocks = shelf.bins[index].blocks;
        for (std::size_t at = blocks.size(); at-- > 0;) {
            if (wanted.is_front_of(blocks[at].block.slab->extent())) {
                return shelf.take_at(index, at);
            }
        }
    }
    return {};
}

}  // namespace

// A large block for the stream, out of what it has free. Cuts whole handles of so many bytes.
BlockRef Pool::recut(const Cache& cache, ClassIndex index, std::uint64_t cut_up_to) {
    if (cache.shelf == nullptr || !is_large(index)) return {};
    // A tool is told that a graph uses its blocks as they are.
    if (nvtx_ != nullptr && is_capture(cache.number)) return {};
    const std::uint64_t bytes = class_bytes(index);
    const Wanted wanted{index, extents_->borders(), cut_up_to};
    Shelf& shelf = *cache.shelf;
    const std::lock_guard guard(shelf.lock);
    if (shelf.ended || shelf.bytes < bytes) return {};
    // When as many are new as there are: so it costs each of them little, however many they are.
    if (shelf.fresh >= shelf.large_blocks) join_neighbours(shelf, *large_);
    Shelf::Shelved found = take_smallest(shelf, wanted);
    if (found.block.slab == nullptr && shelf.fresh > 0) {
        join_neighbours(shelf, *large_);
        found = take_smallest(shelf, wanted);
    }
    if (found.block.slab == nullptr) return {};
    ++shelf.hits;
    if (found.block.bytes() > with_excess(bytes)) {
        try {
            shelf.make_room(class_served_by(found.block.bytes() - bytes), 1);
            shelf.put_back({large_->cut(found.block, bytes, shelf.spare), found.mark});
        } catch (const std::bad_alloc&) {
            // The host has no memory for another record: the block stays whole.
        }
    }
    return found.block;
}

}  // namespace vramkit::pool
