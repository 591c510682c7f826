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

// Of what the pool may have: so much a stream has free before its large blocks are made into other
// sizes. Up to there a block of each size is quicker.
constexpr std::uint64_t kKeptPart = 64;

// One block of a larger class, but of no more than `most` bytes. Soon found, and soon cut into
// pieces that nobody needs.
Shelf::Shelved take_larger(Shelf& shelf, ClassIndex index, std::uint64_t most) {
    for (ClassIndex larger = index + 1; larger < kClasses && class_bytes(larger) <= most;
         ++larger) {
        const std::size_t held = shelf.bins[larger].blocks.size();
        if (held > 0) return shelf.take_at(larger, held - 1);
    }
    return {};
}

// The smallest stretch of neighbours that is long enough, and of it those in front, as one. The
// last of them is cut later, so it has at most `cut_up_to` bytes.
Shelf::Shelved take_neighbours(Shelf& shelf, LargeBlocks& large, std::uint64_t least,
                               std::uint64_t cut_up_to) {
    struct Place {
        BlockRef block;
        ClassIndex index = 0;
        std::size_t at = 0;  // in the bin of its class

        std::uint64_t begin() const { return block.address(); }
        std::uint64_t end() const { return block.address() + block.bytes(); }
    };
    std::vector<Place> places;
    for (ClassIndex index = kClasses; index-- > 0 && is_large(index);) {
        const auto& blocks = shelf.bins[index].blocks;
        for (std::size_t at = 0; at < blocks.size(); ++at) {
            places.push_back({blocks[at].block, index, at});
        }
    }
    std::ranges::sort(places, {}, &Place::begin);
    std::span<Place> best;
    std::uint64_t best_bytes = ~std::uint64_t{0};
    for (std::size_t first = 0, next = 0; first < places.size(); first = next) {
        const std::uint64_t begin = places[first].begin();
        std::uint64_t end = begin;
        std::size_t needed = 0;  // of the stretch, for `least` bytes
        for (; next < places.size() && places[next].begin() == end; ++next) {
            if (end - begin < least) ++needed;
            end = places[next].end();
        }
        if (end - begin < least || end - begin >= best_bytes) continue;
        const Place& last = places[first + needed - 1];
        const bool cuts = last.end() - begin > with_excess(least);
        if (cuts && last.block.bytes() > cut_up_to) continue;
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

// A large block for the stream, where that has much free.
BlockRef Pool::recut(const Cache& cache, ClassIndex index) {
    if (cache.shelf == nullptr || !is_large(index)) return {};
    // A tool is told that a graph uses its blocks as they are.
    if (nvtx_ != nullptr && is_capture(cache.number)) return {};
    const std::uint64_t bytes = class_bytes(index);
    const std::uint64_t largest = cut_up_to(bytes);
    if (largest == 0) return {};
    const std::uint64_t keep = most_bytes_.load(std::memory_order_relaxed) / kKeptPart;
    Shelf& shelf = *cache.shelf;
    const std::lock_guard guard(shelf.lock);
    if (shelf.ended || shelf.bytes <= keep) return {};
    Shelf::Shelved found = take_larger(shelf, index, largest);
    if (found.block.slab == nullptr) found = take_neighbours(shelf, *large_, bytes, largest);
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
