// Sizes that every allocator here shares.
#pragma once

#include <cstdint>

namespace vramkit {

inline constexpr std::uint64_t kUnit = 256;                     // least alignment of every block
inline constexpr std::uint64_t kPage = std::uint64_t{2} << 20;  // of virtual memory
inline constexpr std::uint64_t kLargestRequest = std::uint64_t{1} << 40;  // 1 TiB

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace vramkit
