// What an allocator holds of the card beside what the workload has in use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "allocators_bench.h"

namespace bench {

// Stands in for an allocator and counts live bytes: the peak in use of a sequence is found by
// running it on this, off the clock.
class InUse {
  public:
    std::uint64_t allocate(std::uint64_t bytes, const Lane&) {
        live_ += bytes;
        peak_ = std::max(peak_, live_);
        return 1;
    }
    void deallocate(std::uint64_t, std::uint64_t bytes, const Lane&) { live_ -= bytes; }
    std::uint64_t peak() const { return peak_; }

  private:
    std::uint64_t live_ = 0;
    std::uint64_t peak_ = 0;
};

// What the card has less free than just before an allocator was made; the largest reading counts,
// over all allocators that one workload makes. A reading is a driver call: off the clock only, and
// where blocks are live if the workload allows it.
class HeldMemory {
  public:
    explicit HeldMemory(const Bench& bench) : bench_(bench) {}

    template <class Maker>
    auto make(Maker&& make_allocator, std::uint64_t cap = 0) {
        before_ = static_cast<double>(bench_.card_bytes());
        auto allocator = make_allocator(cap);
        if constexpr (requires { allocator->takes(); }) takes_ = allocator->takes();
        return allocator;
    }
    void look() { most_ = std::max(most_, static_cast<double>(bench_.card_bytes()) - before_); }
    double most_bytes() const { return most_; }

    // Adds the figures to the row's details. `in_use` is the peak of live bytes as asked for. An
    // allocator that took its memory ahead gets no ratio: its size is not what the workload needs.
    void write(Row& row, std::uint64_t in_use) const {
        if (takes_ == Takes::nothing) return;
        constexpr auto kMiB = static_cast<double>(MiB);
        const auto used = static_cast<double>(in_use);
        row.details.emplace_back("in_use_mib", used / kMiB);
        if (takes_ == Takes::ahead) {
            row.details.emplace_back("taken_ahead_mib", most_ / kMiB);
            return;
        }
        row.details.emplace_back("held_mib", most_ / kMiB);
        row.details.emplace_back("held_over_in_use", most_ / used);
    }

  private:
    const Bench& bench_;
    double before_ = 0;
    double most_ = 0;
    Takes takes_ = Takes::as_needed;
};

}  // namespace bench
