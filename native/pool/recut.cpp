// Large blocks that a stream has freed, in other sizes than they had: cut, or joined where they are
// neighbours. The stream may have all of it at once, so nobody waits and the driver is not called.
#include <algorithm>
#include <functional>
#include <tuple>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

struct OnShelf {
    ClassIndex index = 0;
    std::size_t at = 0;  // in the bin of its class
};

// One block that is larger than a class, but not by too much.
std::vector<OnShelf> find_larger(const Shelf& shelf, ClassIndex index, std::uint64_t most) {
    for (ClassIndex larger = index + 1; larger < kClasses && class_bytes(larger) <= most;
         ++larger) {
        const std::size_t held = shelf.bins[larger].blocks.size();
        if (held > 0) return {{larger, held - 1}};
    }
    return {};
}

// Neighbours that have enough bytes together, and the fewest.
std::vector<OnShelf> find_neighbours(const Shelf& shelf, ClassIndex smaller_than,
                                     std::uint64_t least) {
    struct Block {
        Extent extent;
        OnShelf place;
    };
    std::vector<Block> blocks;
    for (ClassIndex index = smaller_than; index-- > 0 && is_large(index);) {
        const auto& bin = shelf.bins[index].blocks;
        for (std::size_t at = 0; at < bin.size(); ++at) {
            blocks.push_back({bin[at].block.slab->extent(), {index, at}});
        }
    }
    std::ranges::sort(blocks, {}, [](const Block& block) { return block.extent.address; });
    auto best_first = blocks.begin(), best_end = best_first;
    std::uint64_t best = ~std::uint64_t{0};
    auto first = blocks.begin();
    for (auto next = first; next != blocks.end(); ++next) {
        if (next != first && std::prev(next)->extent.end() != next->extent.address) first = next;
        const auto bytes = [&] { return next->extent.end() - first->extent.address; };
        for (; bytes() >= least; ++first) {
            if (bytes() < best)
                std::tie(best, best_first, best_end) = std::tuple{bytes(), first, next + 1};
            if (first == next) break;
        }
    }
    std::vector<OnShelf> found;
    for (; best_first != best_end; ++best_first) found.push_back(best_first->place);
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
    std::vector<OnShelf> places = find_larger(shelf, index, cut_up_to);
    if (places.empty()) places = find_neighbours(shelf, index, bytes);
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
