// bf16 weights in 12 bits each, without loss: the format bf16-12.
//
// A weight rotated left by one bit has its exponent in the high byte, and mantissa and sign (bit 0)
// in the low one. The low byte is kept as it is. Of the exponent, 4 bits are kept: an index into
// the 15 commonest exponents of the chunk. Index 15 marks an exception, whose weight is in a list.
//
// A chunk holds up to 2^31 weights and is decoded by itself. Its parts, in one range of bytes:
//
//   part        bytes         content
//   header      512           PackedHeader, then zeros
//   low bytes   count         of weight i: byte i
//   indices     (count+1)/2   of weights 2i and 2i+1: bits 0-3 and 4-7 of byte i
//   positions   4 exceptions  of the exceptions, ascending; 32 bits each
//   values      2 exceptions  of the exceptions, in the same order; the weights themselves
//
// Invariants:
//   1. Each part begins at a multiple of 512 from the start of the chunk, and is filled with zeros
//      up to the next one. So `count` and `exceptions` give the place of every part.
//   2. Weight i has index 15 if and only if i is in positions. No position is there twice: whoever
//      writes the exceptions over what the indices gave may do so in any order.
//   3. Entries of the table that no index refers to are 0, entry 15 among them.
//   4. The same weights give the same bytes, with any number of threads.
//
// All numbers are little-endian. The kernels vk_unpack_bf16 and vk_patch_bf16 of
// src/vramkit/driver/kernels.ptx and of the simulated GPU read this layout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/failure.h"

namespace vramkit::weights {

inline constexpr std::uint64_t kPackedAlignment = 512;
inline constexpr std::uint64_t kPackedHeaderBytes = 512;
inline constexpr unsigned kExponentsInTable = 15;
inline constexpr std::uint64_t kMostWeightsInChunk = std::uint64_t{1} << 31;
// 64 MiB of weights, 48 MiB packed: copies of this size reach the rate of the link.
inline constexpr std::uint64_t kDefaultChunkWeights = std::uint64_t{32} << 20;

constexpr std::uint64_t packed_aligned(std::uint64_t bytes) {
    return (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

struct PackedHeader {
    std::array<char, 8> mark{};  // kPackedMark
    std::uint64_t count = 0;
    std::uint64_t exceptions = 0;
    std::uint64_t reserved = 0;            // 0
    std::array<std::uint8_t, 16> table{};  // exponents, by index
};
inline constexpr std::array<char, 8> kPackedMark{'b', 'f', '1', '6', '-', '1', '2', 0};
static_assert(offsetof(PackedHeader, table) == 32 && sizeof(PackedHeader) == 48);

// Where the parts of a chunk are, in bytes from its start.
struct PackedLayout {
    std::uint64_t low_bytes, indices, positions, values, end;

    constexpr PackedLayout(std::uint64_t count, std::uint64_t exceptions)
        : low_bytes(kPackedHeaderBytes),
          indices(low_bytes + packed_aligned(count)),
          positions(indices + packed_aligned((count + 1) / 2)),
          values(positions + packed_aligned(4 * exceptions)),
          end(values + packed_aligned(2 * exceptions)) {}
};

// Decodes two weights at a time, exceptions with exponent 0; the simulated GPU does so too.
class PairDecoder {
  public:
    explicit PairDecoder(const std::array<std::uint8_t, 16>& table) {
        for (std::uint32_t pair = 0; pair < exponents_.size(); ++pair) {
            exponents_[pair] = static_cast<std::uint32_t>(table[pair & 15]) << 8 |
                               static_cast<std::uint32_t>(table[pair >> 4]) << 24;
        }
    }
    // From a byte of indices and two low bytes; the first weight is in the low half.
    std::uint32_t operator()(std::uint8_t pair, std::uint8_t first, std::uint8_t second) const {
        const std::uint32_t both =
            exponents_[pair] | first | static_cast<std::uint32_t>(second) << 16;
        return ((both >> 1) & 0x7fff7fffU) | ((both << 15) & 0x80008000U);
    }

  private:
    std::array<std::uint32_t, 256> exponents_;  // where they are in two rotated weights
};

// What packing makes of a chunk, known before it is packed.
struct ChunkPlan {
    std::uint64_t first = 0;  // weight
    std::uint64_t count = 0;
    std::uint64_t exceptions = 0;
    // False: it does not pay, and the chunk is stored as it is.
    bool packed = false;
    std::array<std::uint8_t, 16> table{};
    // Exceptions before each piece of kPieceWeights: threads write the lists at once.
    std::vector<std::uint32_t> before;

    std::uint64_t plain_bytes() const { return 2 * count; }
    std::uint64_t packed_bytes() const { return PackedLayout(count, exceptions).end; }
    // A multiple of 512; a plain chunk is filled with zeros up to it.
    std::uint64_t stored_bytes() const {
        return packed ? packed_bytes() : packed_aligned(plain_bytes());
    }
};

// What a thread takes at a time.
inline constexpr std::uint64_t kPieceWeights = std::uint64_t{256} << 10;

// Cuts the weights into chunks of `chunk_weights`, the last one shorter, and counts their
// exponents: one read of the weights. Requires 1 <= chunk_weights <= kMostWeightsInChunk. With
// `always`, chunks are packed that take fewer bytes plain. The caller's thread works too; where the
// system refuses others, it does all.
std::vector<ChunkPlan> plan_packing(std::span<const std::uint16_t> weights,
                                    std::uint64_t chunk_weights, bool always, unsigned threads);

// Stores the planned chunks one behind the other: one read of the weights, one write. False and the
// reason if `stored` has another size than they take or shares memory with the weights, or if these
// are not those of the plan.
bool pack(std::span<const std::uint16_t> weights, std::span<const ChunkPlan> plans,
          std::span<std::byte> stored, unsigned threads, Failure& why);

// Reads the header. False and the reason if these bytes cannot be a whole packed chunk.
bool read_packed(std::span<const std::byte> packed, PackedHeader& header, Failure& why);

// Decodes the weights from `first` on. Bytes that break an invariant are an error: nothing outside
// of `packed` is read. `weights` may then hold anything.
bool unpack(std::span<const std::byte> packed, std::uint64_t first,
            std::span<std::uint16_t> weights, Failure& why);

// The launch of vk_unpack_bf16 and vk_patch_bf16. Any shape gives the same bytes. In these a thread
// goes through its loop once, so that the card balances the load between its multiprocessors.
inline constexpr unsigned kUnpackThreads = 256;
unsigned unpack_blocks(std::uint64_t count);
unsigned patch_blocks(std::uint64_t exceptions);

}  // namespace vramkit::weights
