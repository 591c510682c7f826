// A part of the pool's addresses.
#pragma once

#include <cstdint>

namespace vramkit::pool {

struct Extent {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;

    std::uint64_t end() const { return address + bytes; }
};

}  // namespace vramkit::pool
