// Blocks of whole pages: each is an extent, and has a record of its own.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "pool/pages.h"
#include "pool/slabs.h"
#include "pool/types.h"

namespace vramkit::pool {

// From any thread. Who makes or ends a block is the only one that has its memory.
class LargeBlocks {
  public:
    explicit LargeBlocks(Pages& pages) : pages_(pages) {}
    LargeBlocks(const LargeBlocks&) = delete;
    LargeBlocks& operator=(const LargeBlocks&) = delete;

    BlockRef make(const Extent& extent) {
        const std::lock_guard guard(lock_);
        return add(extent);
    }
    void end(Slab& slab) {
        const std::lock_guard guard(lock_);
        remove(slab);
    }
    // The block keeps `bytes` in front. The rest is another one.
    BlockRef cut(BlockRef block, std::uint64_t bytes) {
        const std::lock_guard guard(lock_);
        const Extent whole = block.slab->extent();
        const BlockRef rest = add({whole.address + bytes, whole.bytes - bytes});
        set_bytes(*block.slab, bytes);
        return rest;
    }
    // Neighbours in order of address become one block, the first.
    BlockRef join(std::span<const BlockRef> blocks) {
        const std::lock_guard guard(lock_);
        std::uint64_t bytes = 0;
        for (const BlockRef& block : blocks) bytes += block.bytes();
        for (const BlockRef& block : blocks.subspan(1)) remove(*block.slab);
        set_bytes(*blocks[0].slab, bytes);
        return blocks[0];
    }

    std::size_t count() const {
        const std::lock_guard guard(lock_);
        return used_.size();
    }
    // visit(const Slab&), in no order.
    template <class Visit>
    void each(Visit visit) const {
        const std::lock_guard guard(lock_);
        for (const auto& slab : used_) visit(*slab);
    }

  private:
    static void set_bytes(Slab& slab, std::uint64_t bytes) {
        slab.bytes = bytes;
        slab.block_bytes = bytes;
        slab.index = class_served_by(bytes);
    }
    BlockRef add(const Extent& extent) {
        used_.push_back(records_.take(extent.bytes, 1));
        Slab& slab = *used_.back();
        slab.address = extent.address;
        set_bytes(slab, extent.bytes);
        slab.large = true;
        slab.place = used_.size() - 1;
        pages_.enter(slab);
        return {&slab, 0};
    }
    void remove(Slab& slab) {
        pages_.remove(slab);
        std::swap(used_[slab.place], used_.back());
        used_[slab.place]->place = slab.place;
        slab.place = Slab::kNowhere;
        records_.give(std::move(used_.back()));
        used_.pop_back();
    }

    Pages& pages_;
    mutable std::mutex lock_;
    SlabRecords records_;
    std::vector<std::unique_ptr<Slab>> used_;  // each knows its place
};

}  // namespace vramkit::pool
