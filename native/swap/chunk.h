// A chunk: the unit that is backed with memory of the card and moved to the host and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/range_set.h"
#include "driver/table.h"
#include "swap/hash.h"

namespace vramkit::swap {

// unbacked  no memory anywhere; nobody has written it
// resident  on the card; the host may have a copy of what it was at the last swap
// arriving  on its way to the card; the host has its bytes until it is resident
// swapped   on the host only
enum class State : std::uint8_t { unbacked, resident, arriving, swapped };

// Pinned memory for the copy of one chunk; none: no bytes.
struct HostPiece {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::size_t slab = 0;
    explicit operator bool() const { return data != nullptr; }
};

// Invariants:
//   1. `mapped` if resident or arriving. A chunk in another state that has `handle` or `mapped` is
//      what a failed call has left: it uses memory of the card, and the next use continues there.
//   2. `copy` if arriving or swapped, and then it has the chunk's bytes.
//   3. `hashed`: `copy` has bytes with this `hash`. Of a resident chunk the program may have
//      changed them on the card since.
struct Chunk {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    State state = State::unbacked;
    CUmemGenericAllocationHandle handle = 0;  // 0: none, or released: the mapping keeps the memory
    bool mapped = false;
    std::uint64_t last_use = 0;  // a count of uses; larger is later
    HostPiece copy;
    bool hashed = false;
    Hash hash;
    std::uint32_t blocks = 0;  // allocations in it; 0: unused
    bool shared = false;       // small allocations are cut from it
    RangeSet free;             // of a shared one

    bool uses_card() const { return mapped || handle != 0; }
};

}  // namespace vramkit::swap
