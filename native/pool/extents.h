// Memory of the card, mapped: handles side by side in the pool's addresses.
//
// An extent is contiguous for its user, whatever handles it is made of. One that is idle is joined
// with its idle neighbours and may be cut between handles, both without a driver call. Where no
// idle extent is long enough, idle handles are mapped a second time, side by side at a new place,
// and the old places are unmapped later. Where the addresses have memory nothing moves.
//
// Equations, tested by Extents::check:
//   extent.bytes     = sum of its pieces
//   addresses        = holes + idle extents + extents handed out + old places, none overlapping
//   mapped()         = idle() + bytes handed out + handles whose release was put off
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pool/addresses.h"
#include "pool/failure.h"
#include "pool/mappings.h"

namespace vramkit::pool {

struct Extent {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::vector<Piece> pieces;  // in order of address

    std::uint64_t end() const { return address + bytes; }
    // visit(const Place&) in order of address.
    template <typename Visit>
    void each_place(Visit visit) const {
        std::uint64_t at = address;
        for (const Piece& piece : pieces) {
            visit(Place{at, piece});
            at += piece.bytes;
        }
    }
};

// Sizes are positive multiples of kPage; times are of any one clock. Called with the pool's lock
// held.
class Extents {
  public:
    Extents(const DriverTable& call, int device, Addresses& addresses)
        : addresses_(addresses), mappings_(call, device, addresses) {}
    // Gives idle memory back to the driver, whatever it says. What was handed out must have been
    // destroyed or given before.
    ~Extents();
    Extents(const Extents&) = delete;
    Extents& operator=(const Extents&) = delete;

    // New memory: one handle, mapped for reading and writing.
    std::optional<Extent> create(std::uint64_t bytes, Failure& why);
    // The extent becomes idle: all work on it is done. No driver call.
    void give(Extent extent, std::int64_t now);
    // Idle memory without a driver call: a run of neighbouring pieces with `least` to `most` bytes.
    // The smallest such, then the one that leaves the smaller rest, then the lowest address. An
    // extent of `least` bytes is found at once; else every extent of several pieces and more than
    // `least` bytes is looked through.
    std::optional<Extent> take(std::uint64_t least, std::uint64_t most);
    // At least `bytes` contiguous out of idle pieces, which move to a new place. Few of them, and
    // little more than `bytes`: largest first among those no larger than `bytes`, then the smallest
    // that covers the rest; a single larger one, which need not move, where those are short. Where
    // all idle memory is short, a new handle for the rest, of at most `may_create` bytes. Nullopt:
    // not enough (why.call is empty), or the driver's failure; nothing has changed then.
    std::optional<Extent> compose(std::uint64_t bytes, std::uint64_t may_create, Failure& why);
    // Makes one idle extent of all idle pieces, where none has `at_least` bytes and together they
    // have. The largest stays where it is if the addresses behind it are free. Returns the bytes
    // moved; 0: nothing to do or to move, or the driver's failure, and nothing has changed.
    std::uint64_t join(std::uint64_t at_least, Failure& why);
    // Tries to unmap `at_most` old places of moved pieces. True: none are left. One that the driver
    // refuses stays on the list.
    bool unmap_old(std::size_t at_most) { return mappings_.unmap_old(at_most); }
    // Gives memory back to the driver, until `bytes` have gone or a piece more: pieces of extents
    // idle since before that time, longest idle first. Unmaps all old places first, since memory
    // goes only when no place maps it. A piece that cannot be unmapped stays idle. Returns the
    // bytes that have gone.
    std::uint64_t release(std::uint64_t bytes, std::int64_t idle_before);
    // Idle since any time: threads of a simulated GPU have clocks of their own, and what one of
    // them gave a moment ago may lie ahead of another one's now.
    static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();

    std::uint64_t mapped() const { return mappings_.created(); }
    std::uint64_t idle() const { return idle_bytes_; }
    std::uint64_t unreleased() const { return mappings_.unreleased(); }  // put off
    std::uint64_t largest_idle() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
    std::uint64_t idle_smaller_than(std::uint64_t bytes) const;  // sum of idle extents below that
    // visit(const Extent&, std::int64_t since) in order of address.
    template <typename Visit>
    void each_idle(Visit visit) const {
        for (const auto& [address, each] : idle_) visit(each.extent, each.since);
    }

    // Unmaps and releases an extent that was handed out. What the driver refuses is tried again
    // by unmap_old, and at the end.
    void destroy(const Extent& extent);
    // The driver no longer knows anything.
    void forget();
    // What does not add up; empty when well. With `held`, all extents handed out, the equations
    // above in full; without, those among what is idle.
    std::string check(const std::vector<Extent>* held = nullptr) const;

  private:
    struct Idle {
        Extent extent;
        std::int64_t since = 0;
    };
    using BySize = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // bytes, address

    void add(Idle idle);
    Idle remove(std::uint64_t address);
    // Takes out of an idle extent the pieces for which goes(place) is true. The others stay idle
    // where they are, and as long as they have been.
    template <typename Goes>
    void sift(std::uint64_t address, Goes goes);
    // What compose takes. All idle pieces where they are short of `bytes`.
    std::vector<Place> choose(std::uint64_t bytes) const;
    // The idle pieces at these places are idle no more: they were mapped anew.
    void leave(std::vector<Place> places);

    Addresses& addresses_;
    Mappings mappings_;
    std::map<std::uint64_t, Idle> idle_;  // by address; no two are neighbours
    BySize by_size_;
    BySize several_;  // those of several pieces
    std::uint64_t idle_bytes_ = 0;
};

template <typename Goes>
void Extents::sift(std::uint64_t address, Goes goes) {
    const Idle whole = remove(address);
    Idle kept{{address, 0, {}}, whole.since};
    for (const Piece& piece : whole.extent.pieces) {
        const std::uint64_t at = kept.extent.end();
        if (!goes(Place{at, piece})) {
            kept.extent.bytes += piece.bytes;
            kept.extent.pieces.push_back(piece);
            continue;
        }
        if (kept.extent.bytes > 0) add(std::move(kept));
        kept = {{at + piece.bytes, 0, {}}, whole.since};
    }
    if (kept.extent.bytes > 0) add(std::move(kept));
}

}  // namespace vramkit::pool
