// Blocks of whole pages: each is an extent with a record of its own.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "pool/blocks/page_map.h"
#include "pool/blocks/slabs.h"
#include "pool/types.h"

namespace vramkit::pool {

// A caller that makes, ends, cuts or joins blocks owns their memory, and holds the pool's lock or
// that of the stream cache that they are in.
class LargeBlocks {
  public:
    // Records without a block, kept for the next cuts: threads of different streams then do not
    // contend for the lock.
    using Spare = std::vector<Slab*>;

    explicit LargeBlocks(PageMap& pages) : page_map_(pages) {}
    LargeBlocks(const LargeBlocks&) = delete;
    LargeBlocks& operator=(const LargeBlocks&) = delete;

    BlockRef make(const Extent& extent) {
        const std::lock_guard guard(lock_);
        used_.push_back(records_.take(extent.bytes, 1));
        Slab& slab = *used_.back();
        slab.large = true;
        slab.slot = used_.size() - 1;
        return enter(slab, extent);
    }
    void end(Slab& slab) {
        page_map_.remove(slab);
        const std::lock_guard guard(lock_);
        remove(slab);
    }
    // The block keeps its first `bytes`. The rest becomes another block, which is returned.
    BlockRef cut(BlockRef block, std::uint64_t bytes, Spare& spare) {
        const Extent whole = block.slab->extent();
        const Extent behind{whole.address + bytes, whole.bytes - bytes};
        BlockRef rest;
        if (spare.empty()) {
            rest = make(behind);
        } else {
            rest = enter(*spare.back(), behind);
            spare.pop_back();
        }
        set_bytes(*block.slab, bytes);
        return rest;
    }
    // Neighbours in order of address become one block, the first. `spare` must have room for the
    // records of the others.
    BlockRef join(std::span<const BlockRef> blocks, Spare& spare) {
        std::uint64_t bytes = 0;
        for (const BlockRef& block : blocks) bytes += block.bytes();
        for (const BlockRef& block : blocks.subspan(1)) {
            page_map_.remove(*block.slab);
            block.slab->bytes = 0;
            spare.push_back(block.slab);
        }
        set_bytes(*blocks[0].slab, bytes);
        return blocks[0];
    }
    // Gives back all but `most` of the spare records.
    void keep(Spare& spare, std::size_t most) {
        if (spare.size() <= most) return;
        const std::lock_guard guard(lock_);
        for (; spare.size() > most; spare.pop_back()) remove(*spare.back());
    }

    // All records, also those without a block.
    std::size_t records() const {
        const std::lock_guard guard(lock_);
        return used_.size();
    }
    // visit(const Slab&), in no order. With the pool's lock and those of all stream caches.
    template <class Visit>
    void each(Visit visit) const {
        const std::lock_guard guard(lock_);
        for (const auto& slab : used_) {
            if (slab->bytes > 0) visit(*slab);
        }
    }

  private:
    static void set_bytes(Slab& slab, std::uint64_t bytes) {
        slab.bytes = bytes;
        slab.block_bytes = bytes;
        slab.index = class_served_by(bytes);
    }
    BlockRef enter(Slab& slab, const Extent& extent) {
        slab.address = extent.address;
        set_bytes(slab, extent.bytes);
        page_map_.enter(slab);
        return {&slab, 0};
    }
    void remove(Slab& slab) {
        std::swap(used_[slab.slot], used_.back());
        used_[slab.slot]->slot = slab.slot;
        slab.slot = Slab::kNowhere;
        records_.give(std::move(used_.back()));
        used_.pop_back();
    }

    PageMap& page_map_;
    mutable std::mutex lock_;
    SlabRecords records_;
    std::vector<std::unique_ptr<Slab>> used_;  // `slot` of each is its index here
};

}  // namespace vramkit::pool
