// Ranges: the mapped memory of a pool is divided into them. Each is a run of whole spans of 64 KiB
// with a record of its own: a large block, in use or free. The spans of a slab have the slab's
// record instead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "pool/blocks/page_map.h"
#include "pool/blocks/slab_records.h"
#include "pool/types.h"

namespace vramkit::pool {

// The records of ranges. A caller that makes, ends, cuts or joins ranges owns their memory, and
// holds the pool's lock or that of the stream cache that they are in.
class Ranges {
  public:
    // Records without a range, kept for the next cuts: threads of different streams then do not
    // contend for the lock.
    using Spare = std::vector<Slab*>;

    explicit Ranges(PageMap& pages) : page_map_(pages) {}
    Ranges(const Ranges&) = delete;
    Ranges& operator=(const Ranges&) = delete;

    Slab& make(const Extent& extent) {
        const std::lock_guard guard(lock_);
        Slab& range = add();
        range.address = extent.address;
        set_bytes(range, extent.bytes);
        page_map_.enter(range);
        return range;
    }
    // So that the next `count` cuts with these records cannot fail.
    void reserve(Spare& spare, std::size_t count) {
        if (spare.size() < count) fill(spare, count);
    }
    void end(Slab& range) {
        page_map_.remove(range);
        const std::lock_guard guard(lock_);
        remove(range);
    }
    // The range keeps its first `bytes`. The rest becomes another range, which is returned.
    Slab& cut(Slab& range, std::uint64_t bytes, Spare& spare) {
        reserve(spare, 1);
        Slab& rest = *spare.back();
        spare.pop_back();
        rest.only.set(range.only.state(), range.only.stream(), 0);
        rest.address = range.address + bytes;
        set_bytes(rest, range.bytes - bytes);
        page_map_.enter(rest);
        set_bytes(range, bytes);
        page_map_.enter_last(range);
        return rest;
    }
    // The neighbour behind a range becomes a part of it. Its record goes to the spare ones, which
    // have room for it.
    void join(Slab& range, Slab& behind, Spare& spare) {
        set_bytes(range, range.bytes + behind.bytes);
        page_map_.enter_last(range);
        behind.bytes = 0;
        behind.only.set(State::idle, 0, 0);
        spare.push_back(&behind);
    }
    // Gives back all but `most` of the spare records.
    void keep(Spare& spare, std::size_t most) {
        if (spare.size() > most) empty(spare, most);
    }

    // The range in a set of free ones that ends at an address, or begins there; null: none. With
    // the lock of the set.
    Slab* before(std::uint64_t address, const FreeRanges* in) const {
        Slab* const found = page_map_.slab_of(address - 1);
        if (found == nullptr || found->free_in != in) return nullptr;
        return found->address + found->bytes == address ? found : nullptr;
    }
    Slab* behind(std::uint64_t address, const FreeRanges* in) const {
        Slab* const found = page_map_.slab_of(address);
        if (found == nullptr || found->free_in != in) return nullptr;
        return found->address == address ? found : nullptr;
    }

    // visit(const Slab&), in no order. With the pool's lock and those of all stream caches.
    template <class Visit>
    void each(Visit visit) const {
        const std::lock_guard guard(lock_);
        for (const auto& range : used_) {
            if (range->bytes > 0) visit(*range);
        }
    }

    // How many are in use or wait for work. With the pool's lock: other threads may cut and join.
    std::size_t not_idle() const {
        const std::lock_guard guard(lock_);
        return static_cast<std::size_t>(
            std::count_if(used_.begin(), used_.end(), [](const auto& range) {
                return range->bytes > 0 && range->record(0).state() != State::idle;
            }));
    }

  private:
    void fill(Spare& spare, std::size_t count) {
        spare.reserve(count);
        const std::lock_guard guard(lock_);
        while (spare.size() < count) spare.push_back(&add());
    }
    void empty(Spare& spare, std::size_t most) {
        const std::lock_guard guard(lock_);
        for (; spare.size() > most; spare.pop_back()) remove(*spare.back());
    }
    Slab& add() {
        used_.push_back(records_.take(kSpan, 1));
        Slab& range = *used_.back();
        range.large = true;
        range.bytes = 0;
        range.slot = used_.size() - 1;
        return range;
    }
    static void set_bytes(Slab& range, std::uint64_t bytes) {
        range.bytes = bytes;
        range.block_bytes = bytes;
        range.index = range_class_of(bytes);
    }
    void remove(Slab& range) {
        std::swap(used_[range.slot], used_.back());
        used_[range.slot]->slot = range.slot;
        range.slot = Slab::kNowhere;
        records_.give(std::move(used_.back()));
        used_.pop_back();
    }

    PageMap& page_map_;
    mutable std::mutex lock_;
    SlabRecords records_;
    std::vector<std::unique_ptr<Slab>> used_;  // `slot` of each is its index here
};

}  // namespace vramkit::pool
