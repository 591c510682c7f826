// Free memory of a pool by where it is.
#pragma once

#include <cstdint>

#include "pool/parts.h"

namespace vramkit::pool {

struct FreeMemory {
    std::uint64_t cached = 0, stream_cached = 0, slabs = 0, ranges = 0;
    std::uint64_t unusable = 0;  // for a request of the largest size asked for
    std::uint64_t largest = 0;   // block or range

    std::uint64_t idle() const { return slabs + ranges; }
    // The fragmentation rate.
    double rate(std::uint64_t mapped) const {
        return mapped == 0 ? 0.0 : static_cast<double>(unusable) / static_cast<double>(mapped);
    }
};

// With the pool's lock. Free blocks and ranges below `wanted` bytes count as unusable.
FreeMemory free_memory(const Parts& parts, std::uint64_t wanted);

}  // namespace vramkit::pool
