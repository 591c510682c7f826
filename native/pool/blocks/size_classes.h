// Sizes of blocks, and which class serves a request.
//
// Small blocks, up to 60 KiB, have classes. A block above that is a range of whole spans of 64 KiB;
// each number of spans up to 2 MiB has a class of its own, and all larger ones share the last.
//
// fine   small: multiples of 256 bytes up to 2 KiB, then eight classes to each doubling, so that a
//        block is at most 12.5 % larger than the request.
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

inline constexpr std::uint64_t kSpan = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kLargestPowerOfTwoClass = std::uint64_t{1} << 20;

enum class SizeClasses : std::uint8_t { fine, power_of_two };

// The small class of 1 to kSpan bytes; that of kSpan is the first of ranges. A dozen instructions,
// no table.
constexpr ClassIndex fine_class_of(std::uint64_t bytes) {
    const std::uint64_t units = (bytes + kUnit - 1) / kUnit;
    if (units <= 8) return static_cast<ClassIndex>(units - 1);
    // units - 1 = 1xyz... in binary: the leading bit gives the doubling, the next three the step.
    const unsigned doubling = static_cast<unsigned>(std::bit_width(units - 1)) - 4;
    const std::uint64_t step = (units - 1) >> doubling;  // 8 to 15
    return static_cast<ClassIndex>(8 * doubling + step);
}

inline constexpr ClassIndex kFirstRange = fine_class_of(kSpan);
inline constexpr ClassIndex kSpanClasses = kPage / kSpan;
inline constexpr ClassIndex kLargeRange = kFirstRange + kSpanClasses;  // above 2 MiB
inline constexpr ClassIndex kClasses = kLargeRange + 1;

constexpr bool is_range(ClassIndex index) { return index >= kFirstRange; }

// Bytes of a block of this class. Of kLargeRange: the least.
constexpr std::uint64_t class_bytes(ClassIndex index) {
    if (is_range(index)) return std::uint64_t{index - kFirstRange + 1} * kSpan;
    if (index < 8) return (std::uint64_t{index} + 1) * kUnit;
    const unsigned doubling = index / 8 - 1;
    return (std::uint64_t{index % 8 + 9} << doubling) * kUnit;
}
static_assert(class_bytes(kFirstRange) == kSpan && class_bytes(kFirstRange - 1) < kSpan);

// The class of a range of so many bytes, whole spans.
constexpr ClassIndex range_class_of(std::uint64_t bytes) {
    return std::min(kFirstRange - 1 + static_cast<ClassIndex>(bytes / kSpan), kLargeRange);
}

// Which class serves a request: size_classes and alignment as tables.
class ClassMap {
  public:
    ClassMap(SizeClasses classes, std::uint64_t alignment)
        : powers_of_two_(classes == SizeClasses::power_of_two) {
        for (ClassIndex index = 0; index <= kFirstRange; ++index) {
            std::uint64_t bytes = class_bytes(index);
            if (powers_of_two_) bytes = std::bit_ceil(bytes);
            ClassIndex serves = fine_class_of(bytes);
            while (class_bytes(serves) % alignment != 0) ++serves;
            small_[index] = static_cast<std::uint8_t>(serves);
        }
        for (ClassIndex spans = 1; spans <= kSpanClasses; ++spans) {
            spans_[spans - 1] =
                static_cast<std::uint8_t>(range_class_of(range_bytes(spans * kSpan)));
        }
    }
    ClassIndex of(std::uint64_t bytes) const {
        if (bytes <= kSpan) return small_[fine_class_of(bytes)];
        const std::uint64_t spans = (bytes + kSpan - 1) / kSpan;
        return spans <= kSpanClasses ? spans_[spans - 1] : kLargeRange;
    }
    // Bytes of the block for a request of this class.
    std::uint64_t block_bytes(ClassIndex index, std::uint64_t bytes) const {
        return index == kLargeRange ? range_bytes(bytes) : class_bytes(index);
    }

  private:
    static_assert(kClasses <= 256);

    std::uint64_t range_bytes(std::uint64_t bytes) const {
        if (powers_of_two_ && bytes <= kLargestPowerOfTwoClass) return std::bit_ceil(bytes);
        return round_up(bytes, kSpan);
    }

    bool powers_of_two_;
    std::array<std::uint8_t, kFirstRange + 1> small_;
    std::array<std::uint8_t, kSpanClasses> spans_;
};

}  // namespace vramkit::pool
