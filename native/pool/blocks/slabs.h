// Small blocks: slabs of equal blocks, each on a range of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "pool/blocks/page_map.h"
#include "pool/blocks/slab_records.h"
#include "pool/types.h"

namespace vramkit::pool {

// Bytes of a slab of about `count` blocks, whole spans.
constexpr std::uint64_t slab_bytes(ClassIndex index, std::uint64_t count) {
    const std::uint64_t most = kPage / class_bytes(index);
    return round_up(class_bytes(index) * std::clamp<std::uint64_t>(count, 1, most), kSpan);
}

// With the pool's lock. Makes no driver call.
class Slabs {
  public:
    explicit Slabs(PageMap& pages) : page_map_(pages) {}
    Slabs(const Slabs&) = delete;
    Slabs& operator=(const Slabs&) = delete;

    // An idle block of a class; null slab: there is none.
    BlockRef take(ClassIndex index) {
        auto& list = with_idle_[index];
        if (list.empty()) return {};
        Slab& slab = *list.back();
        const BlockRef block{&slab, slab.idle.back()};
        slab.idle.pop_back();
        --idle_[index];
        if (slab.idle.empty()) unlist(slab);
        return block;
    }
    // The block becomes idle. If it was the last of its slab, the slab ends: returns its memory.
    std::optional<Extent> give(BlockRef block);
    // A slab on memory that nobody uses. Its blocks are idle.
    Slab& make(ClassIndex index, const Extent& extent);
    // Takes all idle blocks of a slab; visit(BlockRef).
    template <class Visit>
    void take_all(Slab& slab, Visit visit) {
        if (slab.idle.empty()) return;
        idle_[slab.index] -= slab.idle.size();
        unlist(slab);
        for (const std::uint32_t number : slab.idle) visit(BlockRef{&slab, number});
        slab.idle.clear();
    }
    // Ends the slabs that no block was taken from. Returns their memory.
    std::vector<Extent> end_untouched();

    std::size_t idle_blocks(ClassIndex index) const { return idle_[index]; }
    const std::map<std::uint64_t, std::unique_ptr<Slab>>& all() const { return slabs_; }

  private:
    void list(Slab& slab) {
        auto& to = with_idle_[slab.index];
        slab.slot = to.size();
        to.push_back(&slab);
    }
    void unlist(Slab& slab) {
        auto& from = with_idle_[slab.index];
        from[slab.slot] = from.back();
        from[slab.slot]->slot = slab.slot;
        from.pop_back();
        slab.slot = Slab::kNowhere;
    }
    Extent end(Slab& slab);

    PageMap& page_map_;
    SlabRecords records_;
    std::map<std::uint64_t, std::unique_ptr<Slab>> slabs_;  // by address
    std::array<std::vector<Slab*>, kFirstRange> with_idle_;
    std::array<std::size_t, kFirstRange> idle_{};  // blocks
};

}  // namespace vramkit::pool
