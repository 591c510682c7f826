// Large blocks that a stream has freed, in other sizes than they had: cut, or joined where they are
// neighbours. The stream may have all of it at once, so nobody waits and the driver is not called.
#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <utility>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

// Of what the pool may have: so much a stream has free before its large blocks are made into other
// sizes. Up to there a block of each size is quicker.
constexpr std::uint64_t kKeptPart = 256;

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

// A large block for the stream: at once where memory is short, else when it has much free.
BlockRef Pool::recut(const Cache& cache, ClassIndex index, bool is_short) {
    if (cache.shelf == nullptr || !is_large(index)) return {};
    // A tool is told that a graph uses its blocks as they are.
    if (nvtx_ != nullptr && is_capture(cache.number)) return {};
    const std::uint64_t bytes = class_bytes(index);
    const std::uint64_t keep =
        is_short ? 0 : most_bytes_.load(std::memory_order_relaxed) / kKeptPart;
    Shelf& shelf = *cache.shelf;
    const std::lock_guard guard(shelf.lock);
    if (shelf.ended || shelf.bytes <= keep || shelf.bytes < bytes) return {};
    std::vector<OnShelf> places =
        find_neighbours(shelf, bytes, is_short ? kLargestRequest : kLeastCut * bytes);
    if (places.empty()) return {};
    ++shelf.hits;
    // The last of a bin first, so that the places of the others hold.
    std::ranges::sort(places, std::ranges::greater{},
                      [](const OnShelf& each) { return std::pair(each.index, each.at); });
    std::vector<BlockRef> old;
    Extent whole{~std::uint64_t{0}, 0};
    Marks::Number newest = 0;
    for (const OnShelf& each : places) {
        const auto [block, mark] = shelf.take_at(each.index, each.at);
        old.push_back(block);
        whole = {std::min(whole.address, block.address()), whole.bytes + block.bytes()};
        newest = std::max(newest, mark);
    }
    if (whole.bytes > with_excess(bytes)) {
        const Extent rest{whole.address + bytes, whole.bytes - bytes};
        const auto made = large_->make_anew(old, std::array{Extent{whole.address, bytes}, rest});
        shelf.put_back({made[1], newest});
        return made[0];
    }
    return old.size() == 1 ? old[0] : large_->make_anew(old, {&whole, 1})[0];
}

}  // namespace vramkit::pool
