// A chunk: the unit that is backed with memory of the card and moved to the host and back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/range_set.h"
#include "driver/table.h"
#include "swap/hash.h"

namespace vramkit::swap {

// unbacked  no memory anywhere: nobody has written it, or all its bytes are zero
// resident  on the card; the host may have a copy of what it was at the last swap
// arriving  on its way to the card, or being zeroed there; its bytes are known until it is resident
// swapped   on the host only
enum class State : std::uint8_t { unbacked, resident, arriving, swapped };

// Pinned memory for the copy of one chunk; none: no bytes.
struct HostPiece {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::size_t slab = 0;
    explicit operator bool() const { return data != nullptr; }
};

// One more address of a chunk's bytes, at which the program has mapped the handle that the chunk is
// a part of (handles.h).
struct Alias {
    std::uint64_t address = 0;
    bool mapped = false;  // on the card
    bool ending = false;  // the program has unmapped it, and the driver refused: not mapped again
    std::vector<CUmemAccessDesc> access;  // what the program allowed, each location once
};

// Invariants:
//   1. is_whole() if resident or arriving. A chunk in another state that uses_card() is what a
//      failed call has left: the next use continues there.
//   2. If swapped, `copy` has the chunk's bytes; if arriving, it has unless `zero`.
//   3. `hashed`: `copy` has bytes with this `hash`. Of a resident chunk the program may have
//      changed them on the card since.
//   4. `zero`: it is unbacked or arriving, and its bytes are zero once it is resident.
//   5. Aliases are for chunks of a handle, and so is `handle` while the chunk is on the card.
struct Chunk {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    State state = State::unbacked;
    CUmemGenericAllocationHandle handle = 0;  // 0: none, or released: the mapping keeps the memory
    bool mapped = false;                      // at `address`
    std::vector<Alias> aliases;
    bool of_handle = false;
    bool zero = false;
    bool pinned = false;  // does not leave the card
    HostPiece copy;
    bool hashed = false;
    Hash hash;
    std::uint32_t blocks = 0;  // allocations in it; 0: unused
    bool shared = false;       // small allocations are cut from it
    RangeSet free;             // of a shared one

    bool is_on_card() const { return state == State::resident || state == State::arriving; }
    bool uses_card() const { return mapped || handle != 0; }
    // Mapped wherever it has to be for the program.
    bool is_whole() const {
        return mapped && std::all_of(aliases.begin(), aliases.end(),
                                     [](const Alias& each) { return each.mapped || each.ending; });
    }
    Alias* alias_at(std::uint64_t at) {
        const auto found = std::find_if(aliases.begin(), aliases.end(),
                                        [at](const Alias& each) { return each.address == at; });
        return found == aliases.end() ? nullptr : &*found;
    }
};

}  // namespace vramkit::swap
