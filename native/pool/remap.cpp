// Short of memory: what a stream has freed, at a new place for the same stream. Its work at the old
// place may be under way: the stream's own order keeps the two apart, and the old place stays
// mapped until that work is done. Nobody waits.
#include <algorithm>
#include <functional>

#include "pool/pool.h"

namespace vramkit::pool {

BlockRef Pool::put_together_own(const Cache& cache, std::uint64_t bytes, Failure& why) {
    if (cache.shelf == nullptr || is_capture(cache.number) || addresses_->have_memory()) return {};
    const std::uint64_t exact = round_up(bytes, kPage);
    const std::uint64_t others = extents_->movable(exact) + may_grow();
    if (bytes < kPage || others >= exact) return {};
    const std::shared_ptr<Shelf> shelf = cache.shelf;
    const std::vector<Shelf::Shelved> taken = take_whole(*shelf, exact - others, exact);
    if (taken.empty()) return {};
    std::vector<Extent> extents;
    Marks::Number newest = 0;
    for (const auto& [block, mark] : taken) {
        extents.push_back(block.slab->extent());
        newest = std::max(newest, mark);
    }
    const Done done = [shelf, newest] {
        const std::lock_guard guard(shelf->lock);
        return shelf->is_past(newest);
    };
    const std::uint64_t before = extents_->mapped();
    const std::optional<Extent> made = extents_->compose(exact, may_grow(), extents, done, why);
    if (!made) {
        const std::lock_guard guard(shelf->lock);
        for (const Shelf::Shelved& each : taken) shelf->put_back(each);
        return {};
    }
    if (extents_->mapped() > before) note_growth();
    for (const Shelf::Shelved& each : taken) large_->end(*each.block.slab);
    slow_.moved += made->bytes;
    why = {};
    return large_->make(*made);
}

// Large blocks of whole handles out of a shelf, `least` bytes together and of no more than `most`
// each: the largest first, then the smallest that covers the rest. None where they are short, or
// much would be lost.
std::vector<Shelf::Shelved> Pool::take_whole(Shelf& shelf, std::uint64_t least,
                                             std::uint64_t most) {
    struct OnShelf {
        ClassIndex index = 0;
        std::size_t at = 0;
        std::uint64_t bytes = 0;
    };
    const std::lock_guard guard(shelf.lock);
    if (shelf.ended) return {};
    std::vector<OnShelf> places;
    std::uint64_t sum = 0;
    for (ClassIndex index = shelf.next_filled(kFirstLarge); index < kClasses;
         index = shelf.next_filled(index + 1)) {
        const auto& blocks = shelf.bins[index].blocks;
        for (std::size_t at = 0; at < blocks.size(); ++at) {
            const Extent extent = blocks[at].block.slab->extent();
            if (extent.bytes > most || !extents_->borders().is_whole(extent)) continue;
            places.push_back({index, at, extent.bytes});
            sum += extent.bytes;
        }
    }
    if (sum < least) return {};
    std::ranges::stable_sort(places, std::ranges::greater{}, &OnShelf::bytes);
    std::vector<OnShelf> chosen;
    std::uint64_t rest = least, chosen_sum = 0;
    for (auto next = places.begin(); rest > 0; ++next) {
        // What no smaller one covers is covered by this.
        const bool last = next + 1 == places.end() || (next + 1)->bytes < rest;
        if (next->bytes > rest && !last) continue;
        chosen.push_back(*next);
        rest -= std::min(rest, next->bytes);
        chosen_sum += next->bytes;
    }
    if (chosen_sum - least > most / kExcessPart) return {};
    std::vector<Shelf::Shelved> taken;
    taken.reserve(chosen.size());
    for (const OnShelf& place : chosen) {
        taken.push_back(shelf.take_leaving_gap(place.index, place.at));
        // Without a mark so far: somebody waits for it still.
        shelf.awaited = std::max(shelf.awaited, taken.back().mark);
    }
    shelf.close_gaps();
    // The largest last: it may have more than is needed.
    std::ranges::sort(taken, {}, [](const Shelf::Shelved& each) { return each.block.bytes(); });
    return taken;
}

}  // namespace vramkit::pool
