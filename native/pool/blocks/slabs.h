// Blocks below 2 MiB: segments of mapped memory, cut into slabs of equal blocks.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "pool/blocks/page_map.h"
#include "pool/types.h"

namespace vramkit::pool {

// An extent in spans of 64 KiB, each of which is free or belongs to a slab.
struct Segment {
    static constexpr std::uint64_t kMost = std::uint64_t{32} << 20;

    Extent extent;
    std::bitset<kMost / kSpan> used;
    std::size_t spans = 0;
    std::size_t free = 0;

    // The first of `count` free spans in a row, or `spans`.
    std::size_t find(std::size_t count) const {
        std::size_t run = 0;
        for (std::size_t i = 0; i < spans; ++i) {
            run = used[i] ? 0 : run + 1;
            if (run == count) return i + 1 - count;
        }
        return spans;
    }
    std::size_t longest_free() const {
        std::size_t run = 0, longest = 0;
        for (std::size_t i = 0; i < spans; ++i) {
            run = used[i] ? 0 : run + 1;
            longest = std::max(longest, run);
        }
        return longest;
    }
};

// Records of slabs, reused where possible. None is deleted before the pool: a pointer that is freed
// twice, while another thread gives the slab's memory back, must find a record that says "not in
// use". A record serves later slabs with the same number of blocks, rounded up to a power of two,
// so there are never more than the most slabs of each size at one time.
class SlabRecords {
  public:
    // A record for `count` blocks, all idle.
    std::unique_ptr<Slab> take(std::uint64_t block_bytes, std::uint32_t count);
    void give(std::unique_ptr<Slab> slab);

  private:
    static constexpr std::size_t kSizes = 14;  // a slab has at most 2^13 blocks
    static_assert(kPage / kUnit == std::uint64_t{1} << (kSizes - 1));

    template <class Each>
    using BySize = std::array<std::array<Each, kSizes>, 4>;  // by spread and capacity
    BySize<std::vector<std::unique_ptr<Slab>>> spare_;
    BySize<std::size_t> made_{};
};

// With the pool's lock. Makes no driver call: the pool adds and takes away segments.
class Slabs {
  public:
    Slabs(PageMap& pages, SlabRecords& records) : page_map_(pages), records_(records) {}
    Slabs(const Slabs&) = delete;
    Slabs& operator=(const Slabs&) = delete;

    // An idle block of a class; null slab: there is none, and make() must be called first.
    BlockRef take(ClassIndex index) {
        auto& list = with_idle_[index];
        if (list.empty()) return {};
        Slab& slab = *list.back();
        if (slab.idle.size() == slab.count) untouched_.erase(slab.address);
        const BlockRef block{&slab, slab.idle.back()};
        slab.idle.pop_back();
        --idle_[index];
        if (slab.idle.empty()) unlist(slab);
        return block;
    }
    // The block becomes idle. True: its segment is now wholly free.
    bool give(BlockRef block) {
        Slab& slab = *block.slab;
        block.block().set(State::idle, 0, 0);
        if (slab.idle.empty()) list(slab);
        slab.idle.push_back(block.number);
        ++idle_[slab.index];
        return slab.idle.size() == slab.count && dissolve(slab);
    }
    // A slab of about `count` blocks on free spans. False: no segment has room.
    bool make(ClassIndex index, std::uint64_t count);
    void add_segment(Extent extent);
    // Takes all segments that are wholly free. dissolve_idle: wholly idle slabs dissolve first.
    std::vector<Extent> take_free_segments(bool dissolve_idle);

    std::size_t idle_blocks(ClassIndex index) const { return idle_[index]; }
    std::uint64_t free_span_bytes() const { return free_spans_ * kSpan; }
    std::size_t slab_count() const { return slabs_.size(); }
    const std::map<std::uint64_t, std::unique_ptr<Segment>>& segments() const { return segments_; }
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
    bool dissolve(Slab& slab);
    // Takes spans of a segment, or gives them back.
    void use(Segment& segment, std::size_t at, std::size_t spans, bool used);

    PageMap& page_map_;
    SlabRecords& records_;
    std::map<std::uint64_t, std::unique_ptr<Segment>> segments_;  // by address
    std::map<std::uint64_t, std::unique_ptr<Slab>> slabs_;        // by address
    // Subsets by address: segments with a free span, wholly free ones, and slabs that no block was
    // taken from.
    std::map<std::uint64_t, Segment*> with_room_, free_;
    std::map<std::uint64_t, Slab*> untouched_;
    std::array<std::vector<Slab*>, kClasses> with_idle_;
    std::array<std::size_t, kClasses> idle_{};  // blocks
    std::size_t free_spans_ = 0;
};

}  // namespace vramkit::pool
