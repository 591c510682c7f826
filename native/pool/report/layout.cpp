// The layout of a pool's memory, and the check of its invariants.
#include <algorithm>
#include <array>
#include <mutex>

#include "pool/report/layout.h"

namespace vramkit::pool {

Layout layout_of(const Parts& parts) {
    const Slabs& slabs = parts.memory.slabs();
    const Streams& streams = parts.streams;
    Layout layout;
    parts.memory.pieces().each([&](const Extent& piece) {
        auto& extents = layout.extents;
        if (extents.empty() || extents.back().address + extents.back().bytes != piece.address) {
            extents.push_back({piece.address, 0, {}});
        }
        extents.back().bytes += piece.bytes;
        extents.back().pieces.push_back(piece.bytes);
    });
    // Index of a stream number in the list: streams first, then captures.
    const auto mapping = [&](std::uint32_t number) {
        return is_capture(number)
                   ? static_cast<std::int64_t>(streams.streams().size() + (number & ~kCaptureBit))
                   : std::int64_t{number};
    };
    const auto add_block = [&](const Slab& slab, std::uint32_t number) {
        const Block& block = slab.record(number);
        const State state = block.state();
        const std::uint64_t asked = block.with_user() ? slab.asked_for(block) : 0;
        layout.blocks.push_back({slab.address + number * slab.block_bytes, slab.block_bytes, asked,
                                 state, state == State::idle ? -1 : mapping(block.stream())});
    };
    {
        std::vector<std::unique_lock<BriefMutex>> guards;  // no range is cut or joined meanwhile
        streams.each_cache([&](StreamCache& cache) { guards.emplace_back(cache.lock); });
        parts.memory.ranges().each([&](const Slab& range) {
            if (range.record(0).state() != State::idle) add_block(range, 0);
        });
    }
    for (const auto& [address, slab] : slabs.all()) {
        layout.slabs.push_back({slab->address, slab->bytes, slab->block_bytes, slab->count});
        for (std::uint32_t i = 0; i < slab->count; ++i) add_block(*slab, i);
    }
    std::sort(layout.blocks.begin(), layout.blocks.end(),
              [](const auto& a, const auto& b) { return a.address < b.address; });
    for (const auto* list : {&streams.streams(), &streams.captures()}) {
        for (const StreamRecord& each : *list) {
            const bool lives = each.cache != nullptr;
            layout.streams.push_back({lives ? each.cache->stream.id : 0,
                                      list == &streams.captures(), !lives || each.cache->ended});
        }
    }
    return layout;
}

std::string check_invariants(const Parts& parts) {
    const Slabs& slabs = parts.memory.slabs();
    std::unordered_map<const Slab*, std::array<std::uint64_t, 6>> found;
    std::string wrong;
    const auto count = [&](const BlockRef& block, State state, ClassIndex index,
                           const char* where) {
        if (block.block().state() != state) {
            wrong += std::string("a block in ") + where + " has another state; ";
        }
        if (block.slab->index != index) wrong += "a block is in the bin of another class; ";
        ++found[block.slab][static_cast<std::size_t>(state)];
    };
    for (const auto& cache : parts.threads.all()) {
        std::uint64_t bytes = 0;
        for (ClassIndex index = 0; index < kClasses; ++index) {
            const ThreadCache::Bin& bin = cache->bins[index];
            if (bin.low > bin.blocks.size())
                wrong += "a low-water mark of a cache is above its blocks; ";
            if (!bin.blocks.empty() && cache->filled.next(index) != index)
                wrong += "a class of a cache has blocks and counts as empty; ";
            for (const BlockRef& block : bin.blocks) {
                bytes += block.bytes();
                count(block, State::cached, index, "a cache");
            }
        }
        if (bytes != cache->bytes) wrong += "the bytes of a cache do not add up; ";
    }
    const auto check_ranges = [&](const FreeRanges& ranges, State state, const char* where) {
        std::uint64_t bytes = 0, number = 0;
        ranges.each([&](Slab& range) {
            bytes += range.bytes;
            ++number;
            count({&range, 0}, state, range_class_of(range.bytes), where);
            if (range.free_in != &ranges) wrong += "a free range does not know where it is; ";
            if (range.fence < ranges.oldest()) wrong += "a free range has an older fence; ";
            if (range.fence > ranges.newest()) wrong += "a free range has a newer fence; ";
            return true;
        });
        if (ranges.has_missed_neighbours()) wrong += "free neighbours are not joined; ";
        if (bytes != ranges.bytes() || number != ranges.count()) {
            wrong += std::string("the ranges of ") + where + " do not add up; ";
        }
    };
    parts.streams.each_cache([&](const StreamCache& cache) {
        std::uint64_t bytes = 0;
        for (ClassIndex index = 0; index < kFirstRange; ++index) {
            const StreamCache::Bin& bin = cache.bins[index];
            if ((cache.next_filled(index) == index) == bin.blocks.empty()) {
                wrong += "a stream cache does not know where it has blocks; ";
            }
            if (std::max(bin.low, bin.leaving) > bin.blocks.size()) {
                wrong += "a low-water mark of a stream cache is above its blocks; ";
            }
            Fences::Number before = 0;
            for (const auto& [block, fence] : bin.blocks) {
                bytes += block.bytes();
                count(block, State::stream_cached, index, "a stream cache");
                if (fence < before) wrong += "the fences of a stream cache are out of order; ";
                before = fence;
            }
        }
        if (bytes != cache.small_bytes) wrong += "the bytes of a stream cache do not add up; ";
        check_ranges(cache.ranges, State::stream_cached, "a stream cache");
        check_ranges(cache.leaving, State::stream_cached, "a stream cache, leaving");
    });
    check_ranges(parts.memory.idle(), State::idle, "idle memory");
    parts.held.each([&](const BlockRef& block) {
        count(block, State::held, block.slab->index, "the list of held ones");
    });
    std::vector<Extent> used;
    const auto check_slab = [&](const Slab& slab) {
        std::uint64_t live = 0;
        for (std::uint32_t i = 0; i < slab.count; ++i) {
            live += slab.record(i).with_user();
        }
        const auto& in = found[&slab];
        const std::uint64_t idle = slab.large ? in[0] : slab.idle.size();
        if (live + in[2] + in[3] + in[5] + idle != slab.count) {
            wrong += "a block is nowhere or twice; ";
        }
        used.push_back(slab.extent());
    };
    std::array<std::uint64_t, kFirstRange> idle{};
    for (const auto& [address, slab] : slabs.all()) {
        check_slab(*slab);
        idle[slab->index] += slab->idle.size();
    }
    for (ClassIndex index = 0; index < kFirstRange; ++index) {
        if (idle[index] != slabs.idle_blocks(index)) wrong += "idle blocks do not add up; ";
    }
    parts.memory.ranges().each(check_slab);
    std::ranges::sort(used, {}, &Extent::address);
    return wrong + parts.memory.pieces().check(used);
}

}  // namespace vramkit::pool
