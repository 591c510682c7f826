// Adds up what is free, level by level.
#include "pool/report/free_memory.h"

#include <algorithm>
#include <functional>
#include <mutex>

namespace vramkit::pool {

FreeMemory free_memory(const Parts& parts, ClassIndex largest) {
    FreeMemory free;
    const std::uint64_t wanted = class_bytes(largest);
    const auto count = [&](std::uint64_t bytes, std::uint64_t blocks, std::uint64_t& where) {
        if (blocks == 0) return;
        where += bytes * blocks;
        free.largest = std::max(free.largest, bytes);
        if (bytes < wanted) free.unusable += bytes * blocks;
    };
    // Small blocks of a class are all of one size. Large ones are not, and they are few.
    const auto count_bin = [&](ClassIndex index, const auto& blocks, auto ref,
                               std::uint64_t& where) {
        if (!is_large(index)) return count(class_bytes(index), blocks.size(), where);
        for (const auto& each : blocks) count(ref(each).bytes(), 1, where);
    };
    {
        const AllVisited visited(parts.threads.all());
        for (const auto& cache : parts.threads.all()) {
            for (ClassIndex index = 0; index <= cache->top; ++index) {
                count_bin(index, cache->bins[index].blocks, std::identity(), free.cached);
            }
        }
    }
    parts.streams.each_cache([&](StreamCache& cache) {
        const std::lock_guard guard(cache.lock);
        for (ClassIndex index = 0; index < kClasses; ++index) {
            count_bin(index, cache.bins[index].blocks, std::mem_fn(&StreamCache::Entry::block),
                      free.stream_cached);
        }
    });
    free.stream_cached += parts.held.bytes() + parts.direct.bytes_of_graphs();
    const Slabs& slabs = parts.memory.slabs();
    const Extents& extents = parts.memory.extents();
    for (ClassIndex index = 0; !is_large(index); ++index) {
        count(class_bytes(index), slabs.idle_blocks(index), free.slabs);
    }
    // Spans and extents become blocks of any size up to their own.
    free.spans = slabs.free_span_bytes();
    if (wanted >= kPage) free.unusable += free.spans;
    free.extents = extents.idle();
    if (wanted >= kPage) free.unusable += extents.idle_smaller_than(wanted);
    for (const auto& [address, segment] : slabs.segments()) {
        free.largest = std::max(free.largest, segment->longest_free() * kSpan);
    }
    free.largest = std::max(free.largest, extents.largest_idle());
    return free;
}

}  // namespace vramkit::pool
