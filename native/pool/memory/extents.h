// Mapped memory of the card: handles side by side in the pool's addresses.
//
// An extent is contiguous for its user, whatever handles it consists of. An idle extent is joined
// with its idle neighbours and may be cut at every page, both without a driver call. But a handle
// can be moved or released only as a whole: a part that is in use pins all of it
// (handle_bounds.h). Large new memory is therefore several handles.
// If no idle extent is long enough, wholly idle handles are remapped: mapped a second time, side by
// side at new addresses, and the old mappings are unmapped later. With fixed memory (nvtx) nothing
// moves.
//
// Equations, checked by Extents::check:
//   mappings        = idle extents + extents handed out: the same addresses
//   handle bounds   = where mappings begin and end
//   addresses       = holes + mappings + old mappings, none overlapping
//   mapped()        = idle() + bytes handed out + handles whose release was postponed
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

// A block exceeds its class by at most this part: more is cut off.
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
    // Gives all memory back to the driver, also what is handed out; errors are ignored.
    ~Extents();
    Extents(const Extents&) = delete;
    Extents& operator=(const Extents&) = delete;

    // The largest size of new handles.
    void set_handle_bytes(std::uint64_t bytes) { handle_bytes_ = bytes; }
    // New memory, mapped for reading and writing.
    std::optional<Extent> create(std::uint64_t bytes, Failure& why);
    // The extent becomes idle: all work on it is done. No driver call.
    void give(Extent extent, std::int64_t now);
    // Takes idle memory without a driver call, best fit. Preferred are `least` to `most` bytes that
    // begin and end at handle or extent bounds; else `least` bytes by cutting a handle: one that is
    // cut already, or has at most `cut_up_to` bytes.
    std::optional<Extent> take(std::uint64_t least, std::uint64_t most, std::uint64_t cut_up_to);
    // At least `bytes` contiguous, out of idle handles that are remapped to new addresses. Few of
    // them, and little more than `bytes`: largest first among those no larger than `bytes`, then
    // the smallest that covers the rest. If all are not enough, new memory for the rest, at most
    // `may_create` bytes. Nullopt: not enough (why.call is empty), or the driver failed; nothing
    // has changed then.
    std::optional<Extent> compose(std::uint64_t bytes, std::uint64_t may_create, Failure& why) {
        return compose(bytes, may_create, {}, {}, why);
    }
    // The same, with extents that are handed out in front. They must consist of whole handles, and
    // have no more than `bytes` without the last; they exist no more afterwards. Their old mappings
    // are unmapped when `done` returns true.
    std::optional<Extent> compose(std::uint64_t bytes, std::uint64_t may_create,
                                  std::span<const Extent> given, const Done& done, Failure& why);
    // Bytes of wholly idle handles that are no larger than `largest`.
    std::uint64_t movable(std::uint64_t largest = ~std::uint64_t{0}) const;
    const HandleBounds& bounds() const { return bounds_; }
    // Remaps all wholly idle handles side by side. The extent with the most of them stays where it
    // is if the addresses behind it are free. Returns the bytes moved; 0: nothing to move, or the
    // driver failed, and nothing has changed.
    std::uint64_t join(Failure& why);
    // Tries to unmap `at_most` old mappings of moved handles. True: none are left. One that the
    // driver refuses stays on the list.
    bool unmap_old(std::size_t at_most) { return mappings_.unmap_old(at_most); }
    // Releases handles that were wholly idle before that time, longest idle first, until at least
    // `bytes` are released. Unmaps old mappings first, since memory is freed only when nothing maps
    // it. A handle that cannot be unmapped stays idle. At most `at_most` of each; `more` says
    // whether others are left. Returns the bytes released.
    std::uint64_t release(std::uint64_t bytes, std::int64_t idle_before,
                          std::size_t at_most = kEveryMapping, bool* more = nullptr);
    // Whatever time it became idle. Threads of a simulated GPU have clocks of their own: what one
    // of them gave a moment ago may be later than the current time of another.
    static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();

    std::uint64_t mapped() const { return mappings_.created(); }  // from any thread
    std::uint64_t idle() const { return idle_bytes_; }
    std::uint64_t handed_out() const { return mapped() - idle() - unreleased(); }
    std::uint64_t unreleased() const { return mappings_.unreleased(); }  // release postponed
    std::uint64_t largest_idle() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
    std::uint64_t idle_smaller_than(std::uint64_t bytes) const;  // sum of idle extents below that
    // visit(const Extent&) in order of address.
    template <typename Visit>
    void each_idle(Visit visit) const {
        for (const auto& [address, bytes] : idle_) visit(Extent{address, bytes});
    }

    // visit(bytes) for the part of each handle in an extent, in order of address.
    template <typename Visit>
    void each_part(const Extent& extent, Visit visit) const {
        auto mapping = mapping_of(extent.address);
        for (std::uint64_t at = extent.address; at < extent.end(); ++mapping) {
            const std::uint64_t end = std::min(end_of(*mapping), extent.end());
            visit(end - at);
            at = end;
        }
    }

    // After a reset: the driver no longer knows anything.
    void forget();
    // Which equation does not hold; empty: all hold. With `held`, the list of all extents handed
    // out, it checks the equations above in full; without, those of idle memory.
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
    // The mapping that holds an address.
    ByAddress::const_iterator mapping_of(std::uint64_t address) const {
        return std::prev(by_address_.upper_bound(address));
    }
    // visit(const Mapping&) for each handle that is wholly inside the extent.
    template <typename Visit>
    void each_whole(const Extent& extent, Visit visit) const {
        for (auto mapping = by_address_.lower_bound(extent.address);
             mapping != by_address_.end() && end_of(*mapping) <= extent.end(); ++mapping) {
            visit(Mapping{mapping->first, mapping->second.piece});
        }
    }
    void add(const Extent& extent);
    Extent remove(std::uint64_t address);
    // A part of an idle extent is no longer idle.
    void cut_out(const Extent& part);
    // The shortest run of neighbouring parts of an extent that has at least `least` bytes.
    Extent smallest_run(const Extent& extent, std::uint64_t least) const;
    // The idle handles that compose() takes; all of them if they have less than `bytes`.
    std::vector<Mapping> choose(std::uint64_t bytes) const;
    // These idle handles have moved: their old mappings are no longer idle memory.
    void leave(const std::vector<Mapping>& mappings);
    // New handles of `bytes` together; none if the driver fails.
    std::vector<Piece> create_pieces(std::uint64_t bytes, Failure& why);
    // Notes that the handles are mapped here from now on.
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
