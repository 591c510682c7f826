// Memory of the card, mapped: handles side by side in the pool's addresses.
//
// An extent is contiguous for its user, whatever handles it lies on. One that is idle is joined
// with its idle neighbours and may be cut at every page, both without a driver call. But a handle
// moves and goes back to the driver only as a whole, so that what is cut out of it keeps it here
// (handle bounds.h). New memory is therefore several handles where it is large.
// Where no idle extent is long enough, wholly idle handles are mapped a second time, side by side
// at a new mapping, and the old mappings are unmapped later. Where the addresses have memory
// nothing moves.
//
// Equations, tested by Extents::check:
//   mappings           = idle extents + extents handed out: the same addresses
//   handle bounds          = where mappings begin and end
//   addresses        = holes + mappings + old mappings, none overlapping
//   mapped()         = idle() + bytes handed out + handles whose release was put off
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "pool/memory/addresses.h"
#include "pool/memory/handle_bounds.h"
#include "pool/memory/mappings.h"

namespace vramkit::pool {

// A block is at most this part larger than its class: more is cut off.
inline constexpr std::uint64_t kExcessPart = 8;
constexpr std::uint64_t with_excess(std::uint64_t bytes) { return bytes + bytes / kExcessPart; }

// Sizes are positive multiples of kPage; times are of any one clock. Called with the pool's lock
// held.
class Extents {
  public:
    Extents(const DriverTable& call, int device, Addresses& addresses)
        : addresses_(addresses),
          mappings_(call, device, addresses),
          bounds_(addresses.base(), addresses.bytes()) {}
    // Gives all memory back to the driver, that handed out too, whatever it says.
    ~Extents();
    Extents(const Extents&) = delete;
    Extents& operator=(const Extents&) = delete;

    // New handles have at most so many bytes.
    void set_handle_bytes(std::uint64_t bytes) { handle_bytes_ = bytes; }
    // New memory, mapped for reading and writing.
    std::optional<Extent> create(std::uint64_t bytes, Failure& why);
    // The extent becomes idle: all work on it is done. No driver call.
    void give(Extent extent, std::int64_t now);
    // Idle memory without a driver call: `least` to `most` bytes between handle bounds of handles
    // or extents, where one of the smallest extents that are long enough has them; else `least`
    // bytes, and a handle is cut for them: one that is cut already, or has at most `cut_up_to`.
    std::optional<Extent> take(std::uint64_t least, std::uint64_t most, std::uint64_t cut_up_to);
    // At least `bytes` contiguous out of idle handles, which move to a new mapping. Few of them,
    // and little more than `bytes`: largest first among those no larger than `bytes`, then the
    // smallest that covers the rest. Where all are short, new memory for the rest, at most
    // `may_create` bytes. Nullopt: not enough (why.call is empty), or the driver's failure; nothing
    // has changed then.
    std::optional<Extent> compose(std::uint64_t bytes, std::uint64_t may_create, Failure& why) {
        return compose(bytes, may_create, {}, {}, why);
    }
    // The same with extents that were handed out in front: they consist of whole handles, have no
    // more than `bytes` but for the last, and what is left of them is gone. Their old mappings are
    // unmapped when that is done.
    std::optional<Extent> compose(std::uint64_t bytes, std::uint64_t may_create,
                                  std::span<const Extent> given, const Done& done, Failure& why);
    // Bytes of idle handles that lie there as a whole, and are no larger than that.
    std::uint64_t movable(std::uint64_t largest = ~std::uint64_t{0}) const;
    const HandleBounds& bounds() const { return bounds_; }
    // Brings all idle handles side by side. The extent that has the most of them stays where it is
    // if the addresses behind it are free. Returns the bytes moved; 0: nothing to do or to move, or
    // the driver's failure, and nothing has changed.
    std::uint64_t join(Failure& why);
    // Tries to unmap `at_most` old mappings of moved pieces. True: none are left. One that the
    // driver refuses stays on the list.
    bool unmap_old(std::size_t at_most) { return mappings_.unmap_old(at_most); }
    // Gives memory back to the driver, until `bytes` have gone or a handle more: those that are
    // wholly idle since before that time, longest idle first. Unmaps old mappings first, since
    // memory goes only when nothing maps it. A handle that cannot be unmapped stays idle. At most
    // so many of each; `more` says whether others are left. Returns the bytes that have gone.
    std::uint64_t release(std::uint64_t bytes, std::int64_t idle_before,
                          std::size_t at_most = kEveryMapping, bool* more = nullptr);
    // Idle since any time: threads of a simulated GPU have clocks of their own, and what one of
    // them gave a moment ago may lie ahead of another one's now.
    static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();

    std::uint64_t mapped() const { return mappings_.created(); }  // from any thread
    std::uint64_t idle() const { return idle_bytes_; }
    std::uint64_t handed_out() const { return mapped() - idle() - unreleased(); }
    std::uint64_t unreleased() const { return mappings_.unreleased(); }  // put off
    std::uint64_t largest_idle() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
    std::uint64_t idle_smaller_than(std::uint64_t bytes) const;  // sum of idle extents below that
    // visit(const Extent&) in order of address.
    template <typename Visit>
    void each_idle(Visit visit) const {
        for (const auto& [address, bytes] : idle_) visit(Extent{address, bytes});
    }

    // visit(bytes) for the parts of an extent that lie on different handles, in order of address.
    template <typename Visit>
    void each_part(const Extent& extent, Visit visit) const {
        auto mapping = mapping_of(extent.address);
        for (std::uint64_t at = extent.address; at < extent.end(); ++mapping) {
            const std::uint64_t end = std::min(end_of(*mapping), extent.end());
            visit(end - at);
            at = end;
        }
    }

    // The driver no longer knows anything.
    void forget();
    // What does not add up; empty when well. With `held`, all extents handed out, the equations
    // above in full; without, those among what is idle.
    std::string check(const std::vector<Extent>* held = nullptr) const;

  private:
    struct Mapped {
        Piece piece;
        std::int64_t since = 0;  // the last part of it became idle
    };
    using BySize = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // bytes, address

    using ByAddress = std::map<std::uint64_t, Mapped>;

    static std::uint64_t end_of(const ByAddress::value_type& mapping) {
        return mapping.first + mapping.second.piece.bytes;
    }
    // Where the memory of an address lies.
    ByAddress::const_iterator mapping_of(std::uint64_t address) const {
        return std::prev(by_address_.upper_bound(address));
    }
    // visit(const Mapping&) for each handle that lies in the extent as a whole.
    template <typename Visit>
    void each_whole(const Extent& extent, Visit visit) const {
        for (auto mapping = by_address_.lower_bound(extent.address);
             mapping != by_address_.end() && end_of(*mapping) <= extent.end(); ++mapping) {
            visit(Mapping{mapping->first, mapping->second.piece});
        }
    }
    void add(const Extent& extent);
    Extent remove(std::uint64_t address);
    // A part of an idle extent is idle no more.
    void cut_out(const Extent& part);
    // Of the parts of an extent that follow each other the fewest bytes, but `least` of them.
    Extent smallest_run(const Extent& extent, std::uint64_t least) const;
    // What compose takes. All idle handles where they are short of `bytes`.
    std::vector<Mapping> choose(std::uint64_t bytes) const;
    // These idle handles have moved: their old mappings are idle no more.
    void leave(const std::vector<Mapping>& mappings);
    // New handles, or none where the driver has not as much.
    std::vector<Piece> create_pieces(std::uint64_t bytes, Failure& why);
    // They lie here from now on.
    void enter(std::uint64_t address, std::span<const Piece> pieces);

    Addresses& addresses_;
    Mappings mappings_;
    HandleBounds bounds_;
    std::uint64_t handle_bytes_ = std::numeric_limits<std::uint64_t>::max();
    ByAddress by_address_;                         // every handle in use or idle, by its address
    std::map<std::uint64_t, std::uint64_t> idle_;  // address -> bytes; no two are neighbours
    BySize by_size_;
    std::uint64_t idle_bytes_ = 0;
};

}  // namespace vramkit::pool
