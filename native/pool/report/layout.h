// The layout of a pool's memory, and the check of its invariants.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/parts.h"

namespace vramkit::pool {

// For snapshots and memory maps.
struct Layout {
    // Contiguous mapped memory. What lies in no slab and no block of it is idle.
    struct OneExtent {
        std::uint64_t address, bytes;
        std::vector<std::uint64_t> pieces;
    };
    struct OneSlab {
        std::uint64_t address, bytes, block_bytes, count;
    };
    struct OneBlock {
        std::uint64_t address, bytes, asked;
        State state;
        std::int64_t stream;  // index in `streams`; -1: none
    };
    struct OneStream {
        std::uint64_t id;
        bool capture, ended;
    };
    std::vector<OneExtent> extents;
    std::vector<OneSlab> slabs;
    std::vector<OneBlock> blocks;
    std::vector<OneStream> streams;
};

// With the pool's lock.
Layout layout_of(const Parts& parts);
// Which equations of types.h do not hold; empty: all hold. No other thread may use the pool.
std::string check_invariants(const Parts& parts);

}  // namespace vramkit::pool
