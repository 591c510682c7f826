// Decodes two weights at a time, by the byte that has both of their indices.
#include "sim/machine/unpack.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "weights/packing.h"

namespace vramkit::sim {

void unpack_bf16(std::span<std::byte> weights, std::span<const std::byte> packed) {
    const std::uint64_t count = weights.size() / 2;
    const weights::PackedLayout layout(count, 0);
    weights::PackedHeader header;
    std::memcpy(&header, packed.data(), sizeof header);
    // Both exponents, where they are in two weights that are rotated left by one.
    std::array<std::uint32_t, 256> exponents;
    for (std::uint32_t both = 0; both < exponents.size(); ++both) {
        exponents[both] = static_cast<std::uint32_t>(header.table[both & 15]) << 8 |
                          static_cast<std::uint32_t>(header.table[both >> 4]) << 24;
    }
    const auto* const low = reinterpret_cast<const std::uint8_t*>(packed.data()) + layout.low_bytes;
    const auto* const pairs = reinterpret_cast<const std::uint8_t*>(packed.data()) + layout.indices;
    const auto decoded = [&](std::uint64_t at) {
        const std::uint32_t two =
            exponents[pairs[at / 2]] | low[at] | static_cast<std::uint32_t>(low[at + 1]) << 16;
        return ((two >> 1) & 0x7fff7fffU) | ((two << 15) & 0x80008000U);
    };
    std::uint64_t at = 0;
    for (; at + 2 <= count; at += 2) {
        const std::uint32_t two = decoded(at);
        std::memcpy(weights.data() + 2 * at, &two, sizeof two);
    }
    if (at < count) {
        // An odd count: the low byte behind the last one is padding.
        const auto last = static_cast<std::uint16_t>(decoded(at));
        std::memcpy(weights.data() + 2 * at, &last, sizeof last);
    }
}

void patch_bf16(std::span<std::byte> weights, std::span<const std::byte> positions,
                std::span<const std::byte> values) {
    for (std::size_t each = 0; each < values.size() / 2; ++each) {
        std::uint32_t position;
        std::memcpy(&position, positions.data() + 4 * each, sizeof position);
        if (position >= weights.size() / 2) continue;
        std::memcpy(weights.data() + 2 * std::size_t{position}, values.data() + 2 * each, 2);
    }
}

}  // namespace vramkit::sim
