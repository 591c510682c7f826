// Which slab holds an address: one entry for each 64 KiB of the pool's addresses.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "pool/types.h"

namespace vramkit::pool {

class PageMap {
  public:
    // Only the written parts of the table take host memory. Null: out of host memory.
    static std::unique_ptr<PageMap> over(std::uint64_t base, std::uint64_t bytes) {
        const std::size_t size = bytes / kSpan * sizeof(Entry);
        void* const table = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (table == MAP_FAILED) return nullptr;
        return std::unique_ptr<PageMap>(new PageMap(base, bytes, static_cast<Entry*>(table)));
    }
    ~PageMap() { munmap(table_, whole_ / kSpan * sizeof(Entry)); }
    PageMap(const PageMap&) = delete;
    PageMap& operator=(const PageMap&) = delete;

    // Null for a foreign address. No lock: two loads.
    Slab* slab_of(std::uint64_t address) const {
        if (address - base_ >= bytes_.load(std::memory_order_relaxed)) return nullptr;
        return table_[(address - base_) / kSpan].load(std::memory_order_acquire);
    }
    // Of a range only the first and the last entry are set, so that neighbours are found. Entries
    // between them may be left from earlier ranges.
    void enter(Slab& slab) { set(slab, &slab); }
    void remove(const Slab& slab) { set(slab, nullptr); }
    // The last one alone, of a range that has another end now.
    void enter_last(Slab& range) {
        entry(range.address + range.bytes - kSpan).store(&range, std::memory_order_release);
    }
    // Every address counts as foreign from now on.
    void shut() { bytes_.store(0, std::memory_order_relaxed); }

  private:
    using Entry = std::atomic<Slab*>;

    PageMap(std::uint64_t base, std::uint64_t bytes, Entry* table)
        : base_(base), whole_(bytes), bytes_(bytes), table_(table) {}
    Entry& entry(std::uint64_t address) { return table_[(address - base_) / kSpan]; }
    void set(const Slab& slab, Slab* owner) {
        Entry* const first = &entry(slab.address);
        const std::uint64_t entries = slab.bytes / kSpan;
        const std::uint64_t step = slab.large ? std::max<std::uint64_t>(entries - 1, 1) : 1;
        for (std::uint64_t i = 0; i < entries; i += step)
            first[i].store(owner, std::memory_order_release);
    }

    const std::uint64_t base_;
    const std::uint64_t whole_;
    std::atomic<std::uint64_t> bytes_;
    Entry* const table_;
};

}  // namespace vramkit::pool
