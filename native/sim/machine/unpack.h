// What the kernels compute that decode packed weights; weights/packing.h has the format.
#pragma once

#include <cstddef>
#include <span>

namespace vramkit::sim {

// `packed` is a chunk up to the end of its indices, `weights` has room for all of it. Exceptions
// get exponent 0.
void unpack_bf16(std::span<std::byte> weights, std::span<const std::byte> packed);

// Both lists have the same length. A position outside of `weights` is left out.
void patch_bf16(std::span<std::byte> weights, std::span<const std::byte> positions,
                std::span<const std::byte> values);

}  // namespace vramkit::sim
