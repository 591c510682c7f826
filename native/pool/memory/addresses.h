// The pool's addresses: one range, and the holes in it.
//
// The range is a reservation that memory is mapped into. With NVTX it is one allocation of the
// driver, since the tools know no other memory (nvtx.h).
#pragma once

#include <cstdint>
#include <memory>

#include "base/failure.h"
#include "base/range_set.h"
#include "pool/blocks/size_classes.h"

namespace vramkit::pool {

// Sizes and addresses are multiples of kPage. Called with the pool's lock held.
class Addresses {
  public:
    // Four times the card's memory: addresses cost nothing, and holes of different sizes then
    // hardly ever matter.
    static std::unique_ptr<Addresses> reserve(const DriverTable& call, std::uint64_t card_bytes,
                                              Failure& why);
    // `bytes` that have memory, by one cuMemAlloc.
    static std::unique_ptr<Addresses> allocate(const DriverTable& call, std::uint64_t bytes,
                                               Failure& why);
    ~Addresses() { release(); }
    Addresses(const Addresses&) = delete;
    Addresses& operator=(const Addresses&) = delete;

    std::uint64_t base() const { return base_; }
    std::uint64_t bytes() const { return bytes_; }  // 0: given back
    // All addresses have memory: nothing is mapped or moved.
    bool have_memory() const { return allocation_ != 0; }
    std::uint64_t allocation() const { return allocation_; }  // start of it, at or below base()
    std::uint64_t allocation_bytes() const { return bytes_ + kPage; }

    // The start of the smallest hole that fits, then the lowest. 0: none fits.
    std::uint64_t take(std::uint64_t bytes) { return holes_.take_best(bytes); }
    // Exactly these addresses. False: some of them are taken, and nothing has changed.
    bool take_at(std::uint64_t address, std::uint64_t bytes) {
        return holes_.take_at(address, bytes);
    }
    void give(std::uint64_t address, std::uint64_t bytes) { holes_.insert(address, bytes); }
    const RangeSet& holes() const { return holes_; }

    // Gives the range back; nothing may be mapped in it. If the driver refuses, the destructor
    // tries again.
    void release();
    // After a reset: the driver no longer knows the range.
    void forget();

  private:
    explicit Addresses(const DriverTable& call) : call_(call) {}
    void own(std::uint64_t base, std::uint64_t bytes);

    const DriverTable& call_;
    std::uint64_t base_ = 0;
    std::uint64_t bytes_ = 0;
    CUdeviceptr allocation_ = 0;  // 0: a reservation
    RangeSet holes_;
};

}  // namespace vramkit::pool
