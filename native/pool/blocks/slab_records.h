// Records of slabs and ranges, reused where possible.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pool/types.h"

namespace vramkit::pool {

// None is deleted before the pool: a pointer that is freed twice, while another thread gives the
// slab's memory back, must find a record that says "not in use". A record serves later slabs with
// the same number of blocks, rounded up to a power of two, so there are never more than the most
// slabs of each size at one time.
class SlabRecords {
  public:
    // A record for `count` blocks, all idle.
    std::unique_ptr<Slab> take(std::uint64_t block_bytes, std::uint32_t count) {
        const std::uint8_t spread = Slab::spread_of(block_bytes);
        const auto bits = static_cast<std::uint8_t>(std::bit_width(count - 1));
        auto& list = spare_[spread][bits];
        std::unique_ptr<Slab> slab;
        if (list.empty()) {
            // Room for all of them, so that give() needs no memory.
            list.reserve(++made_[spread][bits]);
            slab = std::make_unique<Slab>(spread, bits);
        } else {
            slab = std::move(list.back());
            list.pop_back();
        }
        slab->block_bytes = block_bytes;
        slab->count = count;
        return slab;
    }
    void give(std::unique_ptr<Slab> slab) {
        for (std::uint32_t i = 0; i < slab->count; ++i) slab->record(i).set(State::idle, 0, 0);
        slab->idle.clear();
        slab->large = false;
        slab->reciprocal = 0;
        spare_[slab->spread][slab->capacity_bits].push_back(std::move(slab));
    }

  private:
    static constexpr std::size_t kSizes = 14;  // a slab has at most 2^13 blocks
    static_assert(kPage / kUnit == std::uint64_t{1} << (kSizes - 1));

    template <class Each>
    using BySize = std::array<std::array<Each, kSizes>, 4>;  // by spread and capacity
    BySize<std::vector<std::unique_ptr<Slab>>> spare_;
    BySize<std::size_t> made_{};
};

}  // namespace vramkit::pool
