// Pinned host memory for copies of chunks.
//
// It comes in slabs: mapped in huge pages, populated by several threads, and registered with the
// driver by one call each. On an H200 machine that takes 0.05 s a GiB with 16 threads, and
// cuMemHostAlloc 0.6 s, so that prepare() belongs before the first switch. Slabs stay until the end
// or trim(): giving them back waits for the work of the card.
//
// Pinned memory cannot be reclaimed: a slab that the host has no room for would end a program, this
// one perhaps, by the kernel's hand. So what is left is looked at before each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/failure.h"
#include "base/range_set.h"
#include "swap/chunk.h"
#include "swap/host_room.h"

namespace vramkit::swap {

class HostStore {
  public:
    struct Settings {
        std::uint64_t limit = 0;                              // bytes; 0: none
        std::uint64_t slab_bytes = std::uint64_t{256} << 20;  // whole pages of 2 MiB
        unsigned threads = 0;  // that populate; 0: the driver does when it pins
        std::function<HostRoom()> room = [] { return host_room(); };
    };

    HostStore(const DriverTable& call, const Settings& settings)
        : call_(call), settings_(settings) {}
    // Gives all slabs back. The copies must be done.
    ~HostStore();
    HostStore(const HostStore&) = delete;
    HostStore& operator=(const HostStore&) = delete;

    // Makes slabs until so many bytes are free, as far as the limit and the host allow.
    bool prepare(std::uint64_t bytes, Failure& why);
    // Of a slab that has room, else of a new one. Whole pages of 2 MiB.
    bool take(std::uint64_t bytes, HostPiece& piece, Failure& why);
    // Copies from and to it are done, or will be before those of the next piece.
    void give(HostPiece& piece);
    // Gives slabs without pieces back to the system. Waits for the work of the card.
    void trim();

    std::uint64_t held() const { return held_; }
    std::uint64_t used() const { return used_; }

  private:
    struct Slab {
        std::byte* data = nullptr;  // null: given back
        std::uint64_t bytes = 0;
        RangeSet free;
    };
    // A slab of as many bytes as there is room for, from `least` up to `most`.
    bool add(std::uint64_t least, std::uint64_t most, Failure& why);
    // Bytes that a slab may have. Where these are less than `least`, `why` says who does not allow
    // it.
    std::uint64_t room(std::uint64_t least, Failure& why) const;
    bool take_free(std::uint64_t bytes, HostPiece& piece);
    bool give_back(Slab& slab);

    const DriverTable& call_;
    const Settings settings_;
    std::vector<Slab> slabs_;
    std::uint64_t held_ = 0, used_ = 0;
};

}  // namespace vramkit::swap
