// Splits and joins large blocks that a stream has freed. The stream can reuse all of them at once,
// so nothing waits and no driver call is made.
#include <algorithm>
#include <span>
#include <vector>

#include "base/host_memory.h"
#include "base/rules.h"
#include "pool/memory/device_memory.h"
#include "pool/streams/stream_cache.h"

namespace vramkit::pool {
namespace {

constexpr std::size_t kSpareRecords = 64;  // kept by a stream cache

struct FreeRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    ClassIndex index = 0;
    std::uint32_t at = 0;  // position in the bin of its class
};

std::vector<FreeRange> by_address(const StreamCache& stream_cache) {
    std::vector<FreeRange> ranges;
    ranges.reserve(stream_cache.large_blocks);
    for (ClassIndex index = stream_cache.next_filled(kFirstLarge); index < kClasses;
         index = stream_cache.next_filled(index + 1)) {
        const auto& blocks = stream_cache.bins[index].blocks;
        for (std::uint32_t at = 0; at < blocks.size(); ++at) {
            const Extent extent = blocks[at].block.slab->extent();
            ranges.push_back({extent.address, extent.end(), index, at});
        }
    }
    std::ranges::sort(ranges, {}, &FreeRange::begin);
    return ranges;
}

// Joins neighbours into one block, behind the newest of their fences.
void join_neighbours(StreamCache& stream_cache, LargeBlocks& large) {
    const std::vector<FreeRange> ranges = by_address(stream_cache);
    std::vector<std::span<const FreeRange>> stretches;
    for (std::size_t first = 0, next = 1; first < ranges.size(); first = next++) {
        while (next < ranges.size() && ranges[next].begin == ranges[next - 1].end) ++next;
        if (next - first > 1) stretches.push_back(std::span(ranges).subspan(first, next - first));
    }
    stream_cache.fresh = 0;
    if (stretches.empty()) return;
    for (const auto& stretch : stretches) {
        const std::uint64_t bytes = stretch.back().end - stretch.front().begin;
        stream_cache.make_room(class_served_by(bytes), stretches.size());
    }
    std::vector<StreamCache::Entry> joined;
    joined.reserve(stretches.size());
    std::vector<BlockRef> blocks;
    blocks.reserve(ranges.size());
    stream_cache.spare.reserve(stream_cache.spare.size() + ranges.size());
    for (const auto& stretch : stretches) {
        blocks.clear();
        Fences::Number newest = 0;
        for (const FreeRange& range : stretch) {
            const auto [block, fence] = stream_cache.take_leaving_gap(range.index, range.at);
            blocks.push_back(block);
            newest = is_broken(Rule::joined_block_keeps_newest_fence) ? 0 : std::max(newest, fence);
        }
        joined.push_back({large.join(blocks, stream_cache.spare), newest});
    }
    stream_cache.close_gaps();
    for (const StreamCache::Entry& each : joined) stream_cache.put_back(each);
    large.keep(stream_cache.spare, kSpareRecords);
}

struct Wanted {
    ClassIndex index = 0;
    const HandleBounds& bounds;
    std::uint64_t cut_up_to = 0;
    std::uint64_t bytes = class_bytes(index);

    // Whether the front of a block serves the request: as it is, or split where that is allowed.
    bool is_front_of(const Extent& block) const {
        return block.bytes <= with_excess(bytes) ||
               bounds.may_cut(block, block.address + bytes, cut_up_to);
    }
};

// The newest suitable block of the smallest class that has one.
StreamCache::Entry take_smallest(StreamCache& stream_cache, const Wanted& wanted) {
    for (ClassIndex index = stream_cache.next_filled(wanted.index); index < kClasses;
         index = stream_cache.next_filled(index + 1)) {
        const auto& blocks = stream_cache.bins[index].blocks;
        for (std::size_t at = blocks.size(); at-- > 0;) {
            if (wanted.is_front_of(blocks[at].block.slab->extent())) {
                return stream_cache.take_at(index, at);
            }
        }
    }
    return {};
}

}  // namespace

BlockRef DeviceMemory::split_or_join(StreamCache& stream_cache, ClassIndex index,
                                     std::uint64_t cut_up_to) {
    const std::uint64_t bytes = class_bytes(index);
    const Wanted wanted{index, extents_->bounds(), cut_up_to};
    const std::lock_guard guard(stream_cache.lock);
    if (stream_cache.ended || stream_cache.bytes < bytes) return {};
    // Join when all large blocks are new since the last join: amortised, each costs little.
    if (stream_cache.fresh >= stream_cache.large_blocks) join_neighbours(stream_cache, *large_);
    StreamCache::Entry found = take_smallest(stream_cache, wanted);
    if (found.block.slab == nullptr && stream_cache.fresh > 0) {
        join_neighbours(stream_cache, *large_);
        found = take_smallest(stream_cache, wanted);
    }
    if (found.block.slab == nullptr) return {};
    ++stream_cache.hits;
    if (found.block.bytes() > with_excess(bytes)) {
        // If there is no host memory for another record, the block stays whole.
        if_host_memory_allows([&] {
            stream_cache.make_room(class_served_by(found.block.bytes() - bytes), 1);
            const BlockRef rest = large_->cut(found.block, bytes, stream_cache.spare);
            stream_cache.put_back(
                {rest, is_broken(Rule::split_block_keeps_fence) ? 0 : found.fence});
        });
    }
    return found.block;
}

}  // namespace vramkit::pool
