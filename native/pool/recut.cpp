// Large blocks that a stream has freed, in other sizes than they had: cut, or joined where they are
// neighbours. The stream may have all of it at once, so nobody waits and the driver is not called.
#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

struct OnShelf {
    ClassIndex index = 0;
    std::size_t at = 0;  // in the bin of its class
};

// The smallest stretch of neighbours that is long enough, and of it those in front. The last of
// them is cut, so it has at most `cut_up_to` bytes.
std::vector<OnShelf> find_neighbours(const Shelf& shelf, std::uint64_t least,
                                     std::uint64_t cut_up_to) {
    struct Block {
        Extent extent;
        OnShelf place;
    };
    std::vector<Block> blocks;
    for (ClassIndex index = kClasses; index-- > 0 && is_large(index);) {
        const auto& bin = shelf.bins[index].blocks;
        for (std::size_t at = 0; at < bin.size(); ++at) {
            blocks.push_back({bin[at].block.slab->extent(), {index, at}});
        }
    }
    std::ranges::sort(blocks, {}, [](const Block& block) { return block.extent.address; });
    std::span<const Block> best;
    std::uint64_t best_bytes = ~std::uint64_t{0};
    for (std::size_t first = 0, next = 0; first < blocks.size(); first = next) {
        const std::uint64_t begin = blocks[first].extent.address;
        std::uint64_t end = begin;
        std::size_t needed = 0;  // of the blocks, for `least` bytes
        for (; next < blocks.size() && blocks[next].extent.address == end; ++next) {
            if (end - begin < least) ++needed;
            end += blocks[next].extent.bytes;
        }
        const Block& last = blocks[first + needed - 1];
        const bool cuts = last.extent.end() - begin > with_excess(least);
        if (end - begin < least || end - begin >= best_bytes) continue;
        if (cuts && last.extent.bytes > cut_up_to) continue;
        best = std::span(blocks).subspan(first, needed);
        best_bytes = end - begin;
    }
    std::vector<OnShelf> found;
    for (const Block& block : best) found.push_back(block.place);
    return found;
}

}  // namespace

// A large block for the stream, where it has more than `keep` free bytes, out of blocks of at most
// `cut_up_to`.
BlockRef Pool::recut(const Cache& cache, ClassIndex index, std::uint64_t keep,
                     std::uint64_t cut_up_to) {
    if (cache.shelf == nullptr || !is_large(index)) return {};
    Shelf& shelf = *cache.shelf;
    const std::lock_guard guard(shelf.lock);
    const std::uint64_t bytes = class_bytes(index);
    if (shelf.ended || shelf.bytes <= keep || shelf.bytes < bytes) return {};
    std::vector<OnShelf> places = find_neighbours(shelf, bytes, cut_up_to);
    if (places.empty()) return {};
    ++shelf.hits;
    // The last of a bin first, so that the places of the others hold.
    std::ranges::sort(places, std::ranges::greater{},
                      [](const OnShelf& each) { return std::pair(each.index, each.at); });
    Extent whole{~std::uint64_t{0}, 0};
    Shelf::Shelved newest;
    for (const OnShelf& each : places) {
        const Shelf::Shelved shelved = shelf.take_at(each.index, each.at);
        Slab& slab = *shelved.block.slab;
        whole = {std::min<std::uint64_t>(whole.address, slab.address), whole.bytes + slab.bytes};
        newest.mark = std::max(newest.mark, shelved.mark);
        if (places.size() == 1 && slab.bytes <= with_excess(bytes)) return shelved.block;
        disown(slab);
    }
    if (whole.bytes <= with_excess(bytes)) return adopt(whole);
    newest.block = adopt({whole.address + bytes, whole.bytes - bytes});
    shelf.put_back(newest);
    return adopt({whole.address, bytes});
}

}  // namespace vramkit::pool
