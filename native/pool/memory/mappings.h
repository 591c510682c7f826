// Handles of the card's memory and their mappings: the driver calls behind the pieces, and retries
// of those that the driver refused.
//
// A handle is created, mapped at one address or for a time at two, and released. Cost for each
// handle on an H200: create 15 us, map 1, set access 30, unmap 20, release 19; one call over n
// handles costs n times as much. None of them waits for kernels.
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

// Whether the work that uses a mapping is done; empty: it is.
using Done = std::function<bool()>;

inline constexpr std::size_t kEveryMapping = std::numeric_limits<std::size_t>::max();

// Called with the pool's lock held.
class Mappings {
  public:
    Mappings(const DriverTable& call, int device, Addresses& addresses)
        : call_(call), device_(device), addresses_(addresses) {}
    // Unmaps the old mappings and releases the remaining handles; errors are ignored.
    ~Mappings();
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    // Whether a request for so much would fail: avoids creating several handles for nothing.
    bool card_has_less(std::uint64_t bytes) const;
    // A new handle, mapped nowhere yet.
    std::optional<Piece> create(std::uint64_t bytes, Failure& why);
    // Maps the pieces side by side for reading and writing, at addresses that the caller has taken.
    // On failure they are given back: what was mapped is unmapped, or became an old mapping.
    bool map(std::uint64_t address, std::span<const Piece> pieces, Failure& why);
    // Unmaps one mapping and gives its addresses back. False: the driver refused, and it is still
    // mapped.
    bool unmap(const Mapping& mapping);

    // The piece is mapped elsewhere or no longer needed: this becomes an old mapping, which is
    // unmapped later, when its work is done.
    void leave(const Mapping& mapping, Done done = {});
    // Tries to unmap `at_most` old mappings, then to release postponed handles. True: no old
    // mapping is left. One whose work is not done, or that the driver refuses, goes to the end of
    // the list.
    bool unmap_old(std::size_t at_most);
    std::size_t old_mappings() const { return old_.size(); }
    bool has_old_mapping(const Piece& piece) const { return old_mappings_.contains(piece.handle); }

    // Gives the handle back to the driver. False: postponed until the next unmap_old(), because the
    // driver refused, or because the handle has an old mapping, which would keep its memory.
    bool release(const Piece& piece);

    // Counts memory that was not created here and is never released.
    void adopt(std::uint64_t bytes) { created_ += bytes; }
    // Bytes of handles not yet released. From any thread.
    std::uint64_t created() const { return created_.load(std::memory_order_relaxed); }
    std::uint64_t unreleased() const;  // bytes of postponed handles
    // visit(const Mapping&)
    template <typename Visit>
    void each_old_mapping(Visit visit) const {
        for (const Old& old : old_) visit(old.mapping);
    }

    // After a reset: the driver no longer knows anything.
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
    std::unordered_map<CUmemGenericAllocationHandle, std::uint32_t> old_mappings_;  // their number
    std::vector<Piece> unreleased_;
};

}  // namespace vramkit::pool
