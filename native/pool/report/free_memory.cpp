// Adds up what is free, level by level.
#include "pool/report/free_memory.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace vramkit::pool {

FreeMemory free_memory(const Parts& parts, std::uint64_t wanted) {
    FreeMemory free;
    const auto count = [&](std::uint64_t bytes, std::uint64_t blocks, std::uint64_t& where) {
        if (blocks == 0) return;
        where += bytes * blocks;
        free.largest = std::max(free.largest, bytes);
        if (bytes < wanted) free.unusable += bytes * blocks;
    };
    // As if neighbours were joined: the next request that needs it joins them.
    const auto count_ranges = [&](const FreeRanges& ranges, std::uint64_t& where) {
        std::vector<Extent> extents;
        extents.reserve(ranges.count());
        ranges.each([&](const Slab& range) {
            extents.push_back(range.extent());
            return true;
        });
        std::ranges::sort(extents, {}, &Extent::address);
        for (std::size_t i = 0; i < extents.size(); ++i) {
            std::uint64_t bytes = extents[i].bytes;
            for (; i + 1 < extents.size() && extents[i].end() == extents[i + 1].address; ++i) {
                bytes += extents[i + 1].bytes;
            }
            count(bytes, 1, where);
        }
    };
    {
        const AllVisited visited(parts.threads.all());
        for (const auto& cache : parts.threads.all()) {
            for (ClassIndex index = 0; index < kLargeRange; ++index) {
                count(class_bytes(index), cache->bins[index].blocks.size(), free.cached);
            }
            for (const BlockRef& block : cache->bins[kLargeRange].blocks) {
                count(block.bytes(), 1, free.cached);
            }
        }
    }
    parts.streams.each_cache([&](StreamCache& cache) {
        const std::lock_guard guard(cache.lock);
        for (ClassIndex index = 0; index < kFirstRange; ++index) {
            count(class_bytes(index), cache.bins[index].blocks.size(), free.stream_cached);
        }
        count_ranges(cache.ranges, free.stream_cached);
        count_ranges(cache.leaving, free.stream_cached);
    });
    free.stream_cached += parts.held.bytes() + parts.direct.bytes_of_graphs();
    const Slabs& slabs = parts.memory.slabs();
    for (ClassIndex index = 0; index < kFirstRange; ++index) {
        count(class_bytes(index), slabs.idle_blocks(index), free.slabs);
    }
    count_ranges(parts.memory.idle(), free.ranges);
    return free;
}

}  // namespace vramkit::pool
