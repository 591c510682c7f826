// The hash that tells whether a chunk still equals its host copy: 128 bits, two sums of 64.
//
// Word i of 64 bits adds mix_a(word + (i + 1) * kStepA) to one sum, and mix_b(word ^ (i + 1) *
// kStepB) to the other, modulo 2^64. Sums have no order, so that all threads of a card add at once.
// Both mixes are bijections of good avalanche: a change of one word always changes both sums. Of
// other changes one in 2^128 goes unnoticed, as far as the mixes act like random functions: a
// program that swaps 200 chunks a second for ten years makes 2^36 comparisons, and the odds that
// one of them is wrong are 1 in 2^92. It is no defence against data made to collide: a program
// could only damage its own memory with that.
//
// The kernel vk_hash128 of src/vramkit/driver/kernels.ptx computes the same on a card.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <span>
#include <tuple>

namespace vramkit::swap {

struct Hash {
    std::uint64_t a = 0, b = 0;
    bool operator==(const Hash&) const = default;
};

inline constexpr std::uint64_t kStepA = 0x9e3779b97f4a7c15;
inline constexpr std::uint64_t kStepB = 0xc2b2ae3d27d4eb4f;

// Shifts by 32 cost a card one instruction.
constexpr std::uint64_t mix_a(std::uint64_t x) {
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
    return x ^ x >> 32;
}
constexpr std::uint64_t mix_b(std::uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// The threads of the kernel add to these many pairs of sums, so that they do not wait for each
// other. Their total is the hash; which thread adds where is not defined.
inline constexpr std::uint64_t kHashSlots = 64;
inline constexpr std::uint64_t kHashResultBytes = kHashSlots * sizeof(Hash);

inline Hash total(std::span<const Hash> slots) {
    Hash sum;
    for (const Hash& each : slots) {
        sum.a += each.a;
        sum.b += each.b;
    }
    return sum;
}

// Whole words only: the size is a multiple of 8.
inline Hash hash_of(std::span<const std::byte> bytes) {
    Hash sum;
    std::uint64_t step_a = 0, step_b = 0;
    for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data() + at, sizeof word);
        step_a += kStepA;
        step_b += kStepB;
        sum.a += mix_a(word + step_a);
        sum.b += mix_b(word ^ step_b);
    }
    return sum;
}

// The hashes of zeros, by how many. Each is computed once on the host, from the next smaller one:
// 22 ms for 64 MiB (developer machine).
class ZeroHashes {
  public:
    const Hash& of(std::uint64_t bytes) {
        std::uint64_t from = 0;
        Hash sum;
        if (const auto after = known_.upper_bound(bytes); after != known_.begin()) {
            const auto& before = *std::prev(after);
            if (before.first == bytes) return before.second;
            std::tie(from, sum) = before;
        }
        for (std::uint64_t word = from / 8 + 1; word <= bytes / 8; ++word) {
            sum.a += mix_a(word * kStepA);
            sum.b += mix_b(word * kStepB);
        }
        return known_.emplace(bytes, sum).first->second;
    }

  private:
    std::map<std::uint64_t, Hash> known_;
};

}  // namespace vramkit::swap
