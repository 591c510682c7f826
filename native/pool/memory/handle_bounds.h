// Handle bounds: where handles begin and end in the pool's addresses, and where a cut is allowed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "pool/blocks/size_classes.h"

namespace vramkit::pool {

// Contiguous mapped memory.
struct Extent {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;

    std::uint64_t end() const { return address + bytes; }
};

// Handles are entered with the pool's lock held. Any thread may ask about memory that is handed out
// or in a stream cache whose lock it holds: the handles of such memory do not move.
class HandleBounds {
  public:
    HandleBounds(std::uint64_t base, std::uint64_t bytes)
        : base_(base), is_bound_(new std::atomic<bool>[bytes / kPage + 1]()) {}

    // A handle is mapped there now, whatever was there before.
    void enter(const Extent& handle) {
        for (std::uint64_t at = handle.address + kPage; at < handle.end(); at += kPage) {
            set(at, false);
        }
        set(handle.address, true);
        set(handle.end(), true);
    }
    bool is_at(std::uint64_t address) const {
        return is_bound_[(address - base_) / kPage].load(std::memory_order_relaxed);
    }
    // Whether it begins and ends at handle bounds.
    bool is_whole(const Extent& extent) const {
        return is_at(extent.address) && is_at(extent.end());
    }
    // The handle that holds an address.
    Extent handle_at(std::uint64_t address) const {
        std::uint64_t begin = address, end = address + kPage;
        while (!is_at(begin)) begin -= kPage;
        while (!is_at(end)) end += kPage;
        return {begin, end - begin};
    }
    // Whether an extent may be cut there. Between handles, and in a handle that is only partly in
    // the extent, that costs nothing. A handle that is wholly in it can no longer be moved or
    // released after the cut, so it must have at most `largest` bytes.
    bool may_cut(const Extent& extent, std::uint64_t address, std::uint64_t largest) const {
        if (is_at(address)) return true;
        const Extent handle = handle_at(address);
        const bool whole = handle.address >= extent.address && handle.end() <= extent.end();
        return !whole || handle.bytes <= largest;
    }

  private:
    void set(std::uint64_t address, bool is) {
        is_bound_[(address - base_) / kPage].store(is, std::memory_order_relaxed);
    }

    const std::uint64_t base_;
    const std::unique_ptr<std::atomic<bool>[]> is_bound_;  // for each page, and for the end
};

}  // namespace vramkit::pool
