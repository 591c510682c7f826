// Size classes: the sizes of blocks, and which class serves a request.
//
// fine   multiples of 256 bytes up to 2 KiB, then eight classes to each doubling. From 2 KiB on a
//        block is at most 12.5 % larger than the request, and from the page size on a multiple of
//        it.
// power_of_two
//        the thirteen powers of two from 256 bytes to 1 MiB; larger requests as in fine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/sizes.h"

namespace vramkit::pool {

using ClassIndex = std::uint32_t;

inline constexpr std::uint64_t kSpan = std::uint64_t{64} << 10;  // slabs are aligned to it
inline constexpr std::uint64_t kLargestPowerOfTwoClass = std::uint64_t{1} << 20;
inline constexpr ClassIndex kClasses = 8 + 8 * 29;  // up to kLargestRequest

enum class SizeClasses : std::uint8_t { fine, power_of_two };

// The class of a request of 1 to kLargestRequest bytes. A dozen instructions, no table.
constexpr ClassIndex fine_class_of(std::uint64_t bytes) {
    const std::uint64_t units = (bytes + kUnit - 1) / kUnit;
    if (units <= 8) return static_cast<ClassIndex>(units - 1);
    // units - 1 = 1xyz... in binary: the leading bit gives the doubling, the next three the step.
    const unsigned doubling = static_cast<unsigned>(std::bit_width(units - 1)) - 4;
    const std::uint64_t step = (units - 1) >> doubling;  // 8 to 15
    return static_cast<ClassIndex>(8 * doubling + step);
}

constexpr std::uint64_t fine_class_bytes(ClassIndex index) {
    if (index < 8) return (std::uint64_t{index} + 1) * kUnit;
    const unsigned doubling = index / 8 - 1;
    return (std::uint64_t{index % 8 + 9} << doubling) * kUnit;
}

// Bytes of a block of this class, in whole pages where it is mapped by itself.
constexpr std::uint64_t class_bytes(ClassIndex index) {
    const std::uint64_t bytes = fine_class_bytes(index);
    return bytes >= kPage ? round_up(bytes, kPage) : bytes;
}

constexpr bool is_large(ClassIndex index) { return fine_class_bytes(index) >= kPage; }
inline constexpr ClassIndex kFirstLarge = fine_class_of(kPage);
static_assert(is_large(kFirstLarge) && !is_large(kFirstLarge - 1));

// The largest class that a block of so many bytes can serve.
constexpr ClassIndex class_served_by(std::uint64_t bytes) {
    const ClassIndex index = fine_class_of(bytes);
    return fine_class_bytes(index) > bytes ? index - 1 : index;
}

// Which class serves a request, by its fine class: size_classes and alignment as one table.
class ClassMap {
  public:
    ClassMap(SizeClasses classes, std::uint64_t alignment) {
        for (ClassIndex index = 0; index < kClasses; ++index) {
            std::uint64_t bytes = fine_class_bytes(index);
            if (classes == SizeClasses::power_of_two && bytes <= kLargestPowerOfTwoClass) {
                bytes = std::bit_ceil(bytes);
            }
            if (bytes >= kPage) bytes = round_up(bytes, kPage);
            ClassIndex serves = std::min(fine_class_of(bytes), kClasses - 1);
            while (class_bytes(serves) % alignment != 0) ++serves;
            serves_[index] = static_cast<std::uint8_t>(serves);
        }
    }
    ClassIndex of(std::uint64_t bytes) const { return serves_[fine_class_of(bytes)]; }

  private:
    static_assert(kClasses <= 256);
    std::array<std::uint8_t, kClasses> serves_;
};

}  // namespace vramkit::pool
