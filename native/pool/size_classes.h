// Size classes: which sizes of blocks there are, and which of them serves a request.
//
// fine   multiples of 256 bytes up to 2 KiB, then eight classes to each doubling. A block is at
// most
//        12.5 % larger than the request (from 256 bytes on), and from the page size on a multiple
//        of it.
// seed   the thirteen powers of two from 256 bytes to 1 MiB; larger requests as in fine.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace vramkit::pool {

using ClassIndex = std::uint32_t;

inline constexpr std::uint64_t kUnit = 256;                     // alignment of every block
inline constexpr std::uint64_t kPage = std::uint64_t{2} << 20;  // of virtual memory
inline constexpr std::uint64_t kLargestRequest = std::uint64_t{1} << 40;  // 1 TiB
inline constexpr std::uint64_t kLargestSeedClass = std::uint64_t{1} << 20;
inline constexpr ClassIndex kClasses = 8 + 8 * 29;  // up to kLargestRequest

enum class Classes : std::uint8_t { fine, seed };

// The class of a request of 1 to kLargestRequest bytes. A dozen instructions, no table.
inline ClassIndex fine_class_of(std::uint64_t bytes) {
    const std::uint64_t units = (bytes + kUnit - 1) / kUnit;
    if (units <= 8) return static_cast<ClassIndex>(units - 1);
    // units - 1 = 1xyz... in binary: the leading bit gives the doubling, the next three the step.
    const unsigned doubling = static_cast<unsigned>(std::bit_width(units - 1)) - 4;
    const std::uint64_t step = (units - 1) >> doubling;  // 8 to 15
    return static_cast<ClassIndex>(8 * doubling + step);
}

inline ClassIndex class_of(std::uint64_t bytes, Classes classes) {
    if (classes == Classes::seed && bytes <= kLargestSeedClass) {
        bytes = std::bit_ceil(std::max(bytes, kUnit));
    }
    return fine_class_of(bytes);
}

// Bytes of a block of this class. Classes below 2 to 16 MiB that are no whole pages are rounded up
// to them: memory that is mapped by itself comes in pages.
inline std::uint64_t class_bytes(ClassIndex index) {
    std::uint64_t bytes;
    if (index < 8) {
        bytes = (std::uint64_t{index} + 1) * kUnit;
    } else {
        const unsigned doubling = index / 8 - 1;
        bytes = (std::uint64_t{index % 8 + 9} << doubling) * kUnit;
    }
    return bytes >= kPage ? (bytes + kPage - 1) / kPage * kPage : bytes;
}

inline bool is_large(ClassIndex index) { return class_bytes(index) >= kPage; }

}  // namespace vramkit::pool
