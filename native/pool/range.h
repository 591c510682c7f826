// The pool's addresses: one reservation, cut into chunks, with a page map from pointer to chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "pool/types.h"

namespace vramkit::pool {

class Range {
  public:
    // The reservation is several times the card: addresses cost nothing, and holes between chunks
    // of different sizes then never matter.
    static std::unique_ptr<Range> reserve(const DriverTable& call, int device,
                                          std::uint64_t card_bytes, Failure& why);
    ~Range() { release(); }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

    // The chunk that holds an address, or null for a foreign one. No lock: two loads.
    Chunk* chunk_of(std::uint64_t address) const {
        if (address - base_ >= bytes_.load(std::memory_order_relaxed)) return nullptr;
        return pages_[(address - base_) / kPage].load(std::memory_order_acquire);
    }

    // Memory for `count` blocks of a class. Null and the reason where the driver has none.
    std::unique_ptr<Chunk> map(ClassIndex index, std::uint32_t count, Failure& why);
    // Gives the chunk's memory back. Its blocks must be idle, and all work that used them done.
    // False: the driver refused, and the chunk is as it was.
    bool unmap(Chunk& chunk);
    // Gives the addresses back; all chunks must have been unmapped. Every pointer is foreign then.
    void release();
    // The driver no longer knows the reservation.
    void forget() {
        bytes_ = 0;
        unreleased_.clear();
    }

  private:
    Range(const DriverTable& call, int device) : call_(call), device_(device) {}
    void set_pages(const Chunk& chunk, Chunk* owner);
    void release(CUmemGenericAllocationHandle handle);
    std::uint64_t take(std::uint64_t bytes);
    void give(std::uint64_t address, std::uint64_t bytes);

    const DriverTable& call_;
    int device_;
    std::uint64_t base_ = 0;
    std::atomic<std::uint64_t> bytes_{0};  // 0: given back
    std::unique_ptr<std::atomic<Chunk*>[]> pages_;
    std::map<std::uint64_t, std::uint64_t> holes_;  // begin -> end
    // Handles whose release failed: tried again with the next one.
    std::vector<CUmemGenericAllocationHandle> unreleased_;
};

}  // namespace vramkit::pool
