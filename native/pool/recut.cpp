// Large blocks that a stream has freed, in other sizes than they had: cut, or joined where they are
// neighbours. The stream may have all of it at once, so nobody waits and the driver is not called.
#include <algorithm>
#include <functional>
#include <new>
#include <span>
#include <utility>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

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

// A block of the next larger class that has one, the newest.
Shelf::Shelved take_larger(Shelf& shelf, const Wanted& wanted) {
    for (ClassIndex larger = wanted.index + 1; larger < kClasses; ++larger) {
        const auto& blocks = shelf.bins[larger].blocks;
        for (std::size_t at = blocks.size(); at-- > 0;) {
            if (wanted.is_front_of(blocks[at].block.slab->extent())) {
                return shelf.take_at(larger, at);
            }
        }
    }
    return {};
}

// The smallest stretch of neighbours that is long enough, and of it those in front, as one.
Shelf::Shelved take_neighbours(Shelf& shelf, const Wanted& wanted, LargeBlocks& large) {
    struct Place {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        ClassIndex index = 0;
        std::uint32_t at = 0;  // in the bin of its class
        BlockRef block;
    };
    std::vector<Place> places;
    for (ClassIndex index = kClasses; index-- > 0 && is_large(index);) {
        const auto& blocks = shelf.bins[index].blocks;
        for (std::uint32_t at = 0; at < blocks.size(); ++at) {
            const Extent extent = blocks[at].block.slab->extent();
            places.push_back({extent.address, extent.end(), index, at, blocks[at].block});
        }
    }
    std::ranges::sort(places, {}, &Place::begin);
    std::span<Place> best;
    std::uint64_t best_bytes = ~std::uint64_t{0};
    for (std::size_t first = 0, next = 0; first < places.size(); first = next) {
        const std::uint64_t begin = places[first].begin;
        std::uint64_t end = begin;
        std::size_t needed = 0;  // of the stretch
        for (; next < places.size() && places[next].begin == end; ++next) {
            if (end - begin < wanted.bytes) ++needed;
            end = places[next].end;
        }
        if (end - begin < wanted.bytes || end - begin >= best_bytes) continue;
        const Extent front{begin, places[first + needed - 1].end - begin};
        if (!wanted.is_front_of(front)) continue;
        best = std::span(places).subspan(first, needed);
        best_bytes = end - begin;
    }
    if (best.empty()) return {};
    std::vector<BlockRef> blocks;
    for (const Place& place : best) blocks.push_back(place.block);
    // The last of a bin first, so that the places of the others hold.
    std::ranges::sort(best, std::ranges::greater{},
                      [](const Place& place) { return std::pair(place.index, place.at); });
    Marks::Number mark = 0;
    for (const Place& place : best) {
        mark = std::max(mark, shelf.take_at(place.index, place.at).mark);
    }
    return {large.join(blocks), mark};
}

}  // namespace

// A large block for the stream, out of what it has free.
BlockRef Pool::recut(const Cache& cache, ClassIndex index) {
    if (cache.shelf == nullptr || !is_large(index)) return {};
    // A tool is told that a graph uses its blocks as they are.
    if (nvtx_ != nullptr && is_capture(cache.number)) return {};
    const std::uint64_t bytes = class_bytes(index);
    const Wanted wanted{index, extents_->borders(), cut_up_to(bytes)};
    Shelf& shelf = *cache.shelf;
    const std::lock_guard guard(shelf.lock);
    if (shelf.ended || shelf.bytes < bytes) return {};
    Shelf::Shelved found = take_larger(shelf, wanted);
    if (found.block.slab == nullptr) found = take_neighbours(shelf, wanted, *large_);
    if (found.block.slab == nullptr) return {};
    ++shelf.hits;
    if (found.block.bytes() > with_excess(bytes)) {
        try {
            shelf.make_room(class_served_by(found.block.bytes() - bytes), 1);
            shelf.put_back({large_->cut(found.block, bytes), found.mark});
        } catch (const std::bad_alloc&) {
            // The host has no memory for another record: the block stays whole.
        }
    }
    return found.block;
}

}  // namespace vramkit::pool
