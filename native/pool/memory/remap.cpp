// Remapping, used when memory is short. Also of what a stream has freed, for the same stream: its
// work at the old addresses may still run, but the stream's own order keeps the two apart, and the
// old mapping stays until that work is done. Nothing waits.
#include <algorithm>
#include <functional>
#include <limits>

#include "base/rules.h"
#include "pool/memory/device_memory.h"
#include "pool/memory/extents.h"
#include "pool/streams/stream_cache.h"

namespace vramkit::pool {

namespace {

// Takes large blocks of whole handles out of a stream cache, `least` bytes together, each of at
// most `most`: the largest first, then the smallest that covers the rest. None if there are not
// enough, or if too much would be wasted.
std::vector<StreamCache::Entry> take_whole(StreamCache& stream_cache, const HandleBounds& bounds,
                                           std::uint64_t least, std::uint64_t most) {
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
            if (extent.bytes > most || !bounds.is_whole(extent)) continue;
            candidates.push_back({index, at, extent.bytes});
            sum += extent.bytes;
        }
    }
    if (sum < least) return {};
    std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::bytes);
    std::vector<Candidate> chosen;
    std::uint64_t rest = least, chosen_sum = 0;
    for (auto next = candidates.begin(); rest > 0; ++next) {
        // The last one: the next smaller does not cover the rest.
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
        // If this fence is not recorded yet, it must still be: the old mapping waits for it.
        stream_cache.awaited = std::max(stream_cache.awaited, taken.back().fence);
    }
    stream_cache.close_gaps();
    // The largest last: it may have more than is needed.
    std::ranges::sort(taken, {}, [](const StreamCache::Entry& each) { return each.block.bytes(); });
    return taken;
}

}  // namespace

BlockRef DeviceMemory::put_together_own(const std::shared_ptr<StreamCache>& stream_cache,
                                        std::uint64_t bytes, Failure& why) {
    if (is_fixed()) return {};
    const std::uint64_t exact = round_up(bytes, kPage);
    const std::uint64_t others = extents_->movable(exact) + may_grow();
    if (bytes < kPage || others >= exact) return {};
    const std::vector<StreamCache::Entry> taken =
        take_whole(*stream_cache, extents_->bounds(), exact - others, exact);
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
    counters_.remapped_bytes += made->bytes;
    why = {};
    return large_->make(*made);
}

std::optional<Extent> Extents::compose(std::uint64_t bytes, std::uint64_t may_create,
                                       std::span<const Extent> given, const Done& done,
                                       Failure& why) {
    std::vector<Mapping> from_given;
    for (const Extent& extent : given) {
        each_whole(extent, [&](const Mapping& mapping) { from_given.push_back(mapping); });
    }
    std::vector<Piece> pieces;
    Extent made;
    const auto add = [&](const Mapping& mapping) {
        pieces.push_back(mapping.piece);
        made.bytes += mapping.piece.bytes;
    };
    for (const Mapping& mapping : from_given) add(mapping);
    const std::vector<Mapping> chosen =
        made.bytes < bytes ? choose(bytes - made.bytes) : std::vector<Mapping>();
    for (const Mapping& mapping : chosen) add(mapping);
    std::vector<Piece> rest;
    if (made.bytes < bytes) {
        if (bytes - made.bytes > may_create) {
            note_shortage("", why);
            return std::nullopt;
        }
        pieces.reserve(pieces.size() + (bytes - made.bytes) / kPage);
        rest = create_pieces(bytes - made.bytes, why);
        if (rest.empty()) return std::nullopt;
        pieces.insert(pieces.end(), rest.begin(), rest.end());
        made.bytes = bytes;
    }
    made.address = mappings_.map(pieces, why);
    if (made.address == 0) {
        for (const Piece& piece : rest) mappings_.release(piece);
        return std::nullopt;
    }
    leave(chosen);
    for (const Mapping& mapping : from_given) {
        by_address_.erase(mapping.address);
        mappings_.leave(mapping, done);
    }
    enter(made.address, pieces);
    return made;
}

std::uint64_t Extents::movable(std::uint64_t largest) const {
    std::uint64_t sum = 0;
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Mapping& mapping) {
            if (mapping.piece.bytes <= largest) sum += mapping.piece.bytes;
        });
    });
    return sum;
}

std::vector<Mapping> Extents::choose(std::uint64_t bytes) const {
    std::vector<Mapping> mappings;
    std::uint64_t sum = 0;
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Mapping& mapping) {
            if (mapping.piece.bytes > bytes) return;
            mappings.push_back(mapping);
            sum += mapping.piece.bytes;
        });
    });
    if (sum < bytes) return mappings;
    std::ranges::stable_sort(mappings, std::ranges::greater{},
                             [](const Mapping& mapping) { return mapping.piece.bytes; });
    std::uint64_t rest = bytes;
    auto next = mappings.begin();
    for (; rest > 0 && next->piece.bytes <= rest; ++next) rest -= next->piece.bytes;
    if (rest > 0) {
        const auto too_small = std::partition_point(
            next, mappings.end(),
            [&](const Mapping& mapping) { return mapping.piece.bytes >= rest; });
        *next++ = *std::prev(too_small);
    }
    mappings.erase(next, mappings.end());
    return mappings;
}

std::uint64_t Extents::join(Failure& why) {
    if (addresses_.have_memory()) return 0;
    Extent most;  // the last extent with the most idle handles
    std::uint64_t most_bytes = 0, all_bytes = 0;
    each_idle([&](const Extent& extent) {
        std::uint64_t bytes = 0;
        each_whole(extent, [&](const Mapping& mapping) { bytes += mapping.piece.bytes; });
        all_bytes += bytes;
        if (bytes == 0 || bytes < most_bytes) return;
        most = extent;
        most_bytes = bytes;
    });
    if (all_bytes == most_bytes) return 0;
    const bool stays = addresses_.take_at(most.end(), all_bytes - most_bytes);
    std::vector<Mapping> moved;
    std::vector<Piece> pieces;
    std::vector<std::int64_t> since;
    each_idle([&](const Extent& extent) {
        if (stays && extent.address == most.address) return;
        each_whole(extent, [&](const Mapping& mapping) {
            moved.push_back(mapping);
            pieces.push_back(mapping.piece);
            since.push_back(by_address_.at(mapping.address).since);
        });
    });
    std::uint64_t to = most.end();
    if (!stays) {
        to = mappings_.map(pieces, why);
    } else if (!mappings_.map_at(to, pieces, why)) {
        to = 0;
    }
    if (to == 0) return 0;
    leave(moved);
    enter(to, pieces);
    std::uint64_t at = to;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        give({at, pieces[i].bytes}, since[i]);
        at += pieces[i].bytes;
    }
    return at - to;
}

void Extents::leave(const std::vector<Mapping>& mappings) {
    for (const Mapping& mapping : mappings) {
        cut_out({mapping.address, mapping.piece.bytes});
        by_address_.erase(mapping.address);
        mappings_.leave(mapping);
    }
}

}  // namespace vramkit::pool
