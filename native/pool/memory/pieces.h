// Pieces: the handles that are mapped in the pool's addresses. A piece is created, moved and
// released only as a whole; the ranges on it may begin and end anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "pool/memory/addresses.h"
#include "pool/memory/extent.h"
#include "pool/memory/mappings.h"

namespace vramkit::pool {

// Sizes and addresses are multiples of kPage. With the pool's lock.
class Pieces {
  public:
    Pieces(const DriverTable& call, int device, Addresses& addresses)
        : addresses_(addresses), mappings_(call, device, addresses) {
        if (!addresses.have_memory()) return;
        // One piece that is never moved or released.
        addresses.take_at(addresses.base(), addresses.bytes());
        mappings_.adopt(addresses.bytes());
        by_address_.emplace(addresses.base(), Mapped{{0, addresses.bytes()}});
    }
    // Gives all memory back to the driver; errors are ignored.
    ~Pieces();
    Pieces(const Pieces&) = delete;
    Pieces& operator=(const Pieces&) = delete;

    // Maps pieces that are mapped elsewhere, and `bytes` of new ones behind them of at most `most`
    // each and a small one at the end, side by side at addresses that the caller has taken. The
    // moved ones are then no longer known at their old addresses; the caller leaves those mappings.
    // False and the reason: nothing has changed, and the addresses are given back.
    bool map(std::uint64_t address, std::span<const Mapping> moved, std::uint64_t bytes,
             std::uint64_t most, Failure& why);
    // The old mapping of a moved piece is unmapped later, when its work is done.
    void leave(const Mapping& mapping, Done done = {}) {
        mappings_.leave(mapping, std::move(done));
    }
    // Unmaps `at_most` old mappings, and releases postponed handles. True: none are left.
    bool unmap_old(std::size_t at_most) { return mappings_.unmap_old(at_most); }
    std::size_t old_mappings() const { return mappings_.old_mappings(); }
    // False: an old mapping would keep the memory.
    bool may_release(const Mapping& mapping) const {
        return !mappings_.has_old_mapping(mapping.piece);
    }
    // Gives a piece back to the driver. False: it refused to unmap it, and nothing has changed;
    // `released` says whether the memory is gone, or its release was postponed.
    bool release(const Mapping& mapping, bool& released);

    // Memory of these pieces became idle.
    void note_idle(const Extent& extent, std::int64_t now);
    // visit(const Mapping&, since) for each piece that is wholly inside the extent; it returns
    // whether to go on.
    template <class Visit>
    void each_whole(const Extent& extent, Visit visit) const {
        if (addresses_.have_memory()) return;
        for (auto piece = by_address_.lower_bound(extent.address);
             piece != by_address_.end() && end_of(*piece) <= extent.end(); ++piece) {
            if (!visit(Mapping{piece->first, piece->second.piece}, piece->second.since)) return;
        }
    }
    // visit(const Extent&) in order of address.
    template <class Visit>
    void each(Visit visit) const {
        for (const auto& [address, mapped] : by_address_)
            visit(Extent{address, mapped.piece.bytes});
    }
    std::size_t count() const { return by_address_.size(); }
    // Stretches of pieces side by side.
    std::size_t segments() const {
        std::size_t found = 0;
        std::uint64_t end = 0;
        each([&](const Extent& piece) {
            found += piece.address != end;
            end = piece.end();
        });
        return found;
    }

    std::uint64_t mapped() const { return mappings_.created(); }  // from any thread
    std::uint64_t unreleased() const { return mappings_.unreleased(); }
    // After a reset: the driver no longer knows anything.
    void forget();
    // Which equation does not hold; empty: all hold. The addresses are holes, pieces and old
    // mappings, none overlapping; the pieces hold exactly the extents given, in order of address.
    std::string check(const std::vector<Extent>& used) const;

  private:
    struct Mapped {
        Piece piece;
        std::int64_t since = 0;  // the last part of it became idle
    };
    using ByAddress = std::map<std::uint64_t, Mapped>;

    static std::uint64_t end_of(const ByAddress::value_type& mapped) {
        return mapped.first + mapped.second.piece.bytes;
    }
    // New handles of `bytes` together; none if the driver fails.
    std::vector<Piece> create(std::uint64_t bytes, std::uint64_t most, Failure& why);

    Addresses& addresses_;
    Mappings mappings_;
    ByAddress by_address_;
};

}  // namespace vramkit::pool
