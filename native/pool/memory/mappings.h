// Handles of the card's memory and the mappings where they are mapped: the driver calls behind the
// extents, and what the driver refused of them.
//
// A handle is created, mapped at one mapping or for a time at two, and released. Costs on an H200,
// a handle: create 15 us, map 1, set access 30, unmap 20, release 19; one call over n handles costs
// n times as much. None of them waits for kernels.
//
// Where the addresses have memory, a handle is a part of them, named by its address: it is there
// from create() to release() without a driver call, and has no second mapping.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/failure.h"
#include "pool/memory/addresses.h"

namespace vramkit::pool {

// One handle: the driver maps it whole or not at all.
struct Piece {
    CUmemGenericAllocationHandle handle = 0;
    std::uint64_t bytes = 0;
};

// A piece mapped at an address.
struct Mapping {
    std::uint64_t address = 0;
    Piece piece;
};

// Whether the work at a mapping is done; empty: it is.
using Done = std::function<bool()>;

inline constexpr std::size_t kEveryMapping = std::numeric_limits<std::size_t>::max();

// Called with the pool's lock held.
class Mappings {
  public:
    Mappings(const DriverTable& call, int device, Addresses& addresses)
        : call_(call), device_(device), addresses_(addresses) {}
    // Unmaps the old mappings and releases what was left unreleased, whatever the driver says.
    ~Mappings();
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    // Whether a request for so much would fail: several handles are not taken for nothing.
    bool card_has_less(std::uint64_t bytes) const;
    // A new handle, mapped nowhere yet.
    std::optional<Piece> create(std::uint64_t bytes, Failure& why);
    // Maps the pieces side by side for reading and writing, and returns where. 0: none is mapped
    // there, or is and became an old mapping. Out of memory for several that cannot move.
    std::uint64_t map(std::span<const Piece> pieces, Failure& why);
    // The same at addresses that the caller has taken; they are given back on failure.
    bool map_at(std::uint64_t address, std::span<const Piece> pieces, Failure& why);
    // Unmaps one mapping and gives its addresses back. False: the driver refused, and it is mapped
    // still.
    bool unmap(const Mapping& mapping);

    // The piece is used elsewhere, or no more: this mapping is unmapped later, when its work is
    // done.
    void leave(const Mapping& mapping, Done done = {});
    // Tries to unmap `at_most` old mappings, and then to release what was put off. True: no old
    // mapping is left. One whose work is not done, or that the driver refuses, goes to the end of
    // the list.
    bool unmap_old(std::size_t at_most);
    bool has_old_mapping(const Piece& piece) const { return old_mappings_.contains(piece.handle); }

    // Gives the handle back to the driver. False: put off until the next unmap_old, since it has an
    // old mapping, and its memory would stay, or the driver refused.
    bool release(const Piece& piece);

    // Bytes of handles not yet released. From any thread.
    std::uint64_t created() const { return created_.load(std::memory_order_relaxed); }
    std::uint64_t unreleased() const;  // bytes of those put off
    // visit(const Mapping&)
    template <typename Visit>
    void each_old_mapping(Visit visit) const {
        for (const Old& old : old_) visit(old.mapping);
    }

    // The driver no longer knows anything.
    void forget();

  private:
    struct Old {
        Mapping mapping;
        Done done;
    };

    const DriverTable& call_;
    int device_;
    Addresses& addresses_;
    std::atomic<std::uint64_t> created_{0};
    std::deque<Old> old_;
    std::unordered_map<CUmemGenericAllocationHandle, std::uint32_t> old_mappings_;  // old ones
    std::vector<Piece> unreleased_;
};

}  // namespace vramkit::pool
