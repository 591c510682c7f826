// Short of memory: what a stream has freed, at new addresses for the same stream. Its work at the
// old mapping may be under way: the stream's own order keeps the two apart, and the old mapping
// stays mapped until that work is done. Nobody waits.
#include <algorithm>
#include <functional>

#include "base/rules.h"
#include "pool/pool.h"

namespace vramkit::pool {

BlockRef Pool::put_together_own(const ThreadCache& cache, std::uint64_t bytes, Failure& why) {
    if (cache.stream_cache == nullptr || is_capture(cache.number) || addresses_->have_memory())
        return {};
    const std::uint64_t exact = round_up(bytes, kPage);
    const std::uint64_t others = extents_->movable(exact) + may_grow();
    if (bytes < kPage || others >= exact) return {};
    const std::shared_ptr<StreamCache> stream_cache = cache.stream_cache;
    const std::vector<StreamCache::Entry> taken = take_whole(*stream_cache, exact - others, exact);
    if (taken.empty()) return {};
    std::vector<Extent> extents;
    Fences::Number newest = 0;
    for (const auto& [block, fence] : taken) {
        extents.push_back(block.slab->extent());
        newest = std::max(newest, fence);
    }
    const Done done = [stream_cache, newest] {
        const std::lock_guard guard(stream_cache->lock);
        return is_broken(Rule::old_mapping_stays_until_work_is_done) ||
               stream_cache->is_past(newest);
    };
    const std::uint64_t before = extents_->mapped();
    const std::optional<Extent> made = extents_->compose(exact, may_grow(), extents, done, why);
    if (!made) {
        const std::lock_guard guard(stream_cache->lock);
        for (const StreamCache::Entry& each : taken) stream_cache->put_back(each);
        return {};
    }
    if (extents_->mapped() > before) note_growth();
    for (const StreamCache::Entry& each : taken) large_->end(*each.block.slab);
    slow_.remapped_bytes += made->bytes;
    why = {};
    return large_->make(*made);
}

// Large blocks of whole handles out of a stream cache, `least` bytes together and of no more than
// `most` each: the largest first, then the smallest that covers the rest. None where they are
// short, or much would be lost.
std::vector<StreamCache::Entry> Pool::take_whole(StreamCache& stream_cache, std::uint64_t least,
                                                 std::uint64_t most) {
    struct Candidate {
        ClassIndex index = 0;
        std::size_t at = 0;
        std::uint64_t bytes = 0;
    };
    const std::lock_guard guard(stream_cache.lock);
    if (stream_cache.ended) return {};
    std::vector<Candidate> candidates;
    std::uint64_t sum = 0;
    for (ClassIndex index = stream_cache.next_filled(kFirstLarge); index < kClasses;
         index = stream_cache.next_filled(index + 1)) {
        const auto& blocks = stream_cache.bins[index].blocks;
        for (std::size_t at = 0; at < blocks.size(); ++at) {
            const Extent extent = blocks[at].block.slab->extent();
            if (extent.bytes > most || !extents_->bounds().is_whole(extent)) continue;
            candidates.push_back({index, at, extent.bytes});
            sum += extent.bytes;
        }
    }
    if (sum < least) return {};
    std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::bytes);
    std::vector<Candidate> chosen;
    std::uint64_t rest = least, chosen_sum = 0;
    for (auto next = candidates.begin(); rest > 0; ++next) {
        // What no smaller one covers is covered by this.
        const bool last = next + 1 == candidates.end() || (next + 1)->bytes < rest;
        if (next->bytes > rest && !last) continue;
        chosen.push_back(*next);
        rest -= std::min(rest, next->bytes);
        chosen_sum += next->bytes;
    }
    if (chosen_sum - least > most / kExcessPart) return {};
    std::vector<StreamCache::Entry> taken;
    taken.reserve(chosen.size());
    for (const Candidate& each : chosen) {
        taken.push_back(stream_cache.take_leaving_gap(each.index, each.at));
        // Without a fence so far: somebody waits for it still.
        stream_cache.awaited = std::max(stream_cache.awaited, taken.back().fence);
    }
    stream_cache.close_gaps();
    // The largest last: it may have more than is needed.
    std::ranges::sort(taken, {}, [](const StreamCache::Entry& each) { return each.block.bytes(); });
    return taken;
}

}  // namespace vramkit::pool
