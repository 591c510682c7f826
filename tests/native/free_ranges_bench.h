// Sets of free ranges on one page map, without a card.
#ifndef VRAMKIT_TESTS_NATIVE_FREE_RANGES_BENCH_H
#define VRAMKIT_TESTS_NATIVE_FREE_RANGES_BENCH_H

#include <algorithm>
#include <vector>

#include "gpu.h"
#include "pool/blocks/free_ranges.h"

namespace free_ranges {

using namespace vramkit;
using namespace vramkit::pool;

inline constexpr std::uint64_t kBase = std::uint64_t{1} << 40;

// One range, in spans from the base.
struct Part {
    std::uint64_t begin = 0, spans = 0;
    Fences::Number fence = 0;

    std::uint64_t end() const { return begin + spans; }
    bool operator==(const Part&) const = default;
};

inline Part part_of(const Slab& range) {
    return {(range.address - kBase) / kSpan, range.bytes / kSpan, range.fence};
}

struct Bench {
    explicit Bench(std::uint64_t spans = 1 << 14) : pages(PageMap::over(kBase, spans * kSpan)) {}

    // A range that is in no set.
    Slab& make(std::uint64_t begin, std::uint64_t spans) {
        return ranges.make({kBase + begin * kSpan, spans * kSpan});
    }
    // The same, put into a set.
    Slab& add(FreeRanges& set, std::uint64_t begin, std::uint64_t spans, Fences::Number fence = 0) {
        Slab& range = make(begin, spans);
        set.put(range, fence);
        return range;
    }
    static std::vector<Part> parts_of(const FreeRanges& set) {
        std::vector<Part> parts;
        set.each([&](const Slab& range) {
            parts.push_back(part_of(range));
            return true;
        });
        std::ranges::sort(parts, {}, &Part::begin);
        return parts;
    }

    std::unique_ptr<PageMap> pages;
    Ranges ranges{*pages};
    EventPool events{gpu::cu()};
    Fences fences{events};
    FreeRanges free{ranges}, other{ranges};
};

}  // namespace free_ranges

#endif
