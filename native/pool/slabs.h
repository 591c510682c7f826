// Blocks below 2 MiB: segments of mapped memory, cut into slabs of equal blocks.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "pool/pages.h"
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
};

// With the pool's lock. Makes no driver call: segments are brought and taken away by the pool.
class Slabs {
  public:
    explicit Slabs(Pages& pages) : pages_(pages) {}
    Slabs(const Slabs&) = delete;
    Slabs& operator=(const Slabs&) = delete;

    // An idle block of a class; null slab: there is none, and make() must be called first.
    BlockRef take(ClassIndex index) {
        auto& list = with_idle_[index];
        if (list.empty()) return {};
        Slab& slab = *list.back();
        const BlockRef block{&slab, slab.idle.back()};
        slab.idle.pop_back();
        idle_bytes_ -= slab.block_bytes;
        if (slab.idle.empty()) unlist(slab);
        return block;
    }
    // The block is nobody's any more. True: with it its segment is wholly free.
    bool give(BlockRef block) {
        Slab& slab = *block.slab;
        block.block().set(State::idle, 0, 0);
        if (slab.idle.empty()) list(slab);
        slab.idle.push_back(block.number);
        idle_bytes_ += slab.block_bytes;
        return slab.idle.size() == slab.count && dissolve(slab);
    }
    // A slab of about `count` blocks on free spans. False: no segment has room.
    bool make(ClassIndex index, std::uint64_t count);
    void add_segment(Extent extent);
    // Whatever segments are wholly free; slabs that are wholly idle dissolve first where asked to.
    std::vector<Extent> take_free_segments(bool dissolve_idle);

    // Every segment, whatever lives on it: at the end of the pool.
    std::vector<Extent> take_all_segments();

    std::uint64_t idle_bytes() const { return idle_bytes_; }
    std::size_t idle_blocks(ClassIndex index) const;
    std::uint64_t mapped() const { return mapped_; }
    std::uint64_t free_span_bytes() const;
    std::size_t slab_count() const { return slabs_.size(); }
    const std::map<std::uint64_t, std::unique_ptr<Segment>>& segments() const { return segments_; }
    const std::map<std::uint64_t, std::unique_ptr<Slab>>& all() const { return slabs_; }

  private:
    void list(Slab& slab) {
        auto& to = with_idle_[slab.index];
        slab.place = to.size();
        to.push_back(&slab);
    }
    void unlist(Slab& slab) {
        auto& from = with_idle_[slab.index];
        from[slab.place] = from.back();
        from[slab.place]->place = slab.place;
        from.pop_back();
        slab.place = Slab::kNowhere;
    }
    bool dissolve(Slab& slab);

    Pages& pages_;
    std::map<std::uint64_t, std::unique_ptr<Segment>> segments_;  // by address
    std::map<std::uint64_t, std::unique_ptr<Slab>> slabs_;        // by address
    std::array<std::vector<Slab*>, kClasses> with_idle_;
    std::uint64_t idle_bytes_ = 0;  // of blocks in slabs
    std::uint64_t mapped_ = 0;      // of segments
};

}  // namespace vramkit::pool
