// Where everything is in a pool, and whether that adds up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/parts.h"

namespace vramkit::pool {

// For pictures.
struct Layout {
    enum class Use : std::uint8_t { slabs, block, idle };
    struct OneExtent {
        std::uint64_t address, bytes;
        std::vector<std::uint64_t> pieces;
        Use use;
    };
    struct OneSlab {
        std::uint64_t address, bytes, block_bytes, count;
    };
    struct OneBlock {
        std::uint64_t address, bytes, asked;
        State state;
        std::int64_t stream;  // in `streams`; -1: of none
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
// What does not hold of the equations of types.h; empty when all is well. Nothing else may run.
std::string check_invariants(const Parts& parts);

}  // namespace vramkit::pool
