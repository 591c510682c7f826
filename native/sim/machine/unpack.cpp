// Decoding on the host, in the steps of the kernels.
#include "sim/machine/unpack.h"

#include <cstdint>
#include <cstring>

#include "weights/packing.h"

namespace vramkit::sim {

void unpack_bf16(std::span<std::byte> weights, std::span<const std::byte> packed) {
    const std::uint64_t count = weights.size() / 2;
    const weights::PackedLayout layout(count, 0);
    weights::PackedHeader header;
    std::memcpy(&header, packed.data(), sizeof header);
    const weights::PairDecoder decode(header.table);
    const auto* const low = reinterpret_cast<const std::uint8_t*>(packed.data()) + layout.low_bytes;
    const auto* const pairs = reinterpret_cast<const std::uint8_t*>(packed.data()) + layout.indices;
    std::uint64_t at = 0;
    for (; at + 2 <= count; at += 2) {
        const std::uint32_t two = decode(pairs[at / 2], low[at], low[at + 1]);
        std::memcpy(weights.data() + 2 * at, &two, sizeof two);
    }
    if (at < count) {
        const auto last = static_cast<std::uint16_t>(decode(pairs[at / 2], low[at], 0));
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
