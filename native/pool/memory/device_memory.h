// Memory that a pool took from the driver: mapped in pieces, divided into ranges and slabs, idle
// until it is handed out.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "pool/blocks/free_ranges.h"
#include "pool/blocks/page_map.h"
#include "pool/blocks/ranges.h"
#include "pool/blocks/slabs.h"
#include "pool/config.h"
#include "pool/device_context.h"
#include "pool/memory/addresses.h"
#include "pool/memory/pieces.h"
#include "pool/nvtx/nvtx.h"

namespace vramkit::pool {

class StreamCache;

// With the pool's lock, in its context, unless stated otherwise.
class DeviceMemory {
  public:
    // `counters` are those of slow paths.
    DeviceMemory(const DeviceContext& card, Stats& counters) : card_(card), counters_(counters) {}
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    // Reserves the addresses. False and the reason on failure; nothing needs to be closed then.
    bool open(const Config& config, Failure& why);
    // False: open() failed, or has not been called.
    bool is_open() const { return pieces_ != nullptr; }
    void configure(const Config& config);

    // An idle large block of so many bytes, the best fit. No driver call. Null slab: there is none.
    BlockRef take_idle_range(std::uint64_t bytes);
    // An idle small block. If no slab has one, a new slab is made on an idle range: `batch` blocks.
    BlockRef take_idle_small(ClassIndex index, std::uint64_t batch);
    // The same from existing slabs.
    BlockRef take_more(ClassIndex index) { return slabs_->take(index); }
    // A slab on free memory of a stream, whose blocks then wait in its stream cache. False: there
    // is no range for `batch` blocks.
    bool make_slab_of(StreamCache& own, ClassIndex index, std::uint64_t batch);
    // What was to leave a stream stays, and idle ranges beside its free ones become the stream's,
    // joined with those.
    void join_idle_to(StreamCache& own);
    // The block becomes idle: all its work is done.
    void give_idle(BlockRef block);
    // Slabs that no block was taken from become idle ranges.
    void end_untouched_slabs();

    // A large block that takes driver calls: pieces that are free as a whole are mapped where they
    // are needed, idle ones and those of the stream, and new ones if that is not enough
    // (moves.cpp). `own` is null if the stream's memory must stay where it is.
    enum class Thrift : std::uint8_t {
        none,    // pieces move only if no new memory may be taken
        earned,  // ... or if the time for it was earned
        must     // ... or if they help at all
    };
    struct Made {
        BlockRef block;
        bool grown = false;  // with new memory
    };
    Made make_range(std::uint64_t bytes, const std::shared_ptr<StreamCache>& own, Thrift thrift,
                    Failure& why);
    // A request failed because no hole in the addresses is large enough.
    static bool lacks_addresses(const Failure& why);
    // Whether so much time may be spent to do without new memory (moves.cpp).
    bool spend(std::int64_t ns);
    // Whether so much more must not be taken while other memory is free. `cached`: bytes that
    // thread caches may keep.
    bool holds_too_much(std::uint64_t bytes, std::uint64_t peak_in_use, std::uint64_t cached) const;
    static constexpr std::int64_t kMoveNs = 45'000;  // a piece mapped, and unmapped later
    // A small block of a new slab of `batch` blocks.
    Made make_small(ClassIndex index, std::uint64_t batch, Failure& why);
    // Makes idle blocks for later, as many as there is memory for. False and the reason: not all.
    bool preallocate(ClassIndex index, std::uint64_t bytes, std::uint64_t count, Failure& why);
    // How many blocks there can be at most, with those that are idle already.
    std::uint64_t could_have(ClassIndex index, std::uint64_t bytes, std::uint64_t card_free) const;

    // Gives memory back to the driver that became idle before that time: all of it, or a few
    // pieces; `more`: others are left. Returns the bytes released.
    std::uint64_t release_idle(std::int64_t idle_before);
    std::uint64_t release_some(std::int64_t idle_before, bool& more);
    // Whatever time it became idle. Threads of a simulated GPU have clocks of their own: what one
    // of them gave a moment ago may be later than the current time of another.
    static constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();
    // Maps all wholly idle pieces side by side. Returns the bytes moved.
    std::uint64_t join_idle(Failure& why);
    // Unmaps some old mappings of moved pieces. True: none are left.
    bool unmap_old();
    void unmap_all_old();
    // Maps memory ahead of need, if that is wanted and the card has room.
    void map_ahead();
    void want_ahead(bool wanted) { ahead_wanted_ = wanted; }
    // Since the last call: whether memory was taken from the driver; whether a step of maintenance
    // became wanted, for memory ahead or for old mappings.
    bool take_grown() { return std::exchange(grown_, false); }
    bool take_step_wanted() { return std::exchange(step_wanted_, false); }

    // Counts memory straight from the driver, outside of our addresses (direct_blocks.h).
    void add_direct(std::uint64_t bytes);
    void remove_direct(std::uint64_t bytes) { direct_bytes_ -= bytes; }
    // Bytes that may still be taken from the driver.
    std::uint64_t may_grow() const;

    std::uint64_t most_bytes() const { return most_bytes_; }    // from any thread
    std::uint64_t mapped() const { return pieces_->mapped(); }  // from any thread
    std::uint64_t reserved() const { return mapped() + direct_bytes_; }
    std::uint64_t in_use() const { return mapped() - idle_->bytes() - pieces_->unreleased(); }
    std::uint64_t peak_reserved() const { return peak_reserved_; }
    void reset_peak() { peak_reserved_ = reserved(); }
    const Addresses& addresses() const { return *addresses_; }
    PageMap& page_map() { return *page_map_; }
    const Slabs& slabs() const { return *slabs_; }
    Ranges& ranges() { return *ranges_; }
    const Ranges& ranges() const { return *ranges_; }
    const FreeRanges& idle() const { return *idle_; }
    const Pieces& pieces() const { return *pieces_; }
    NvtxMarks* nvtx() { return nvtx_.get(); }  // null: off, or there is no tool

    // Gives the addresses back to the driver, unless memory is left that is in use or could not be
    // released; or everything.
    void close();
    void give_everything_back();
    // After a reset: the driver no longer knows anything.
    void forget_driver();

  private:
    struct Move;

    void give_addresses_back();
    void drop_idle();

    bool is_fixed() const { return addresses_->have_memory(); }
    // The size of pieces for so much new memory.
    std::uint64_t piece_bytes(std::uint64_t bytes, Thrift thrift) const;
    std::uint64_t ahead_bytes() const;
    bool has_ahead() const;
    void note_growth();
    void look_ahead();
    Slab& make_slab(Slab& range, ClassIndex index);
    void give_idle_extent(const Extent& extent);
    std::uint64_t release(std::int64_t idle_before, std::size_t at_most, bool* more);

    // moves.cpp
    void choose_base(Move& move, std::uint64_t bytes, const FreeRanges* own) const;
    void choose_pieces(Move& move, FreeRanges* own, std::uint64_t bytes, std::size_t at_most) const;
    void choose_moves(Move& move, FreeRanges* own, std::uint64_t need, Thrift thrift);
    void take_out(Move& move, StreamCache* own);
    void put_back(const Move& move, StreamCache* own);
    Slab* carry_out(Move& move, const std::shared_ptr<StreamCache>& own, Failure& why);

    const DeviceContext& card_;
    Stats& counters_;
    std::uint64_t limit_ = 0;
    std::atomic<std::uint64_t> most_bytes_{0};  // that the pool may have
    std::unique_ptr<Addresses> addresses_;
    std::unique_ptr<PageMap> page_map_;
    std::unique_ptr<NvtxMarks> nvtx_;
    std::unique_ptr<Ranges> ranges_;
    std::unique_ptr<Slabs> slabs_;
    std::unique_ptr<FreeRanges> idle_;
    std::unique_ptr<Pieces> pieces_;
    std::uint64_t direct_bytes_ = 0;
    std::uint64_t peak_reserved_ = 0;
    std::int64_t thrift_ns_ = 0;  // time earned for doing without new memory
    std::int64_t thrift_at_ = 0;
    std::size_t moved_last_ = 0;  // pieces, for the last request that moved any
    bool unmaps_itself_ = false;  // old mappings: there is no background thread that does
    bool ahead_wanted_ = false;   // by map_ahead()
    bool grown_ = false, step_wanted_ = false;
};

}  // namespace vramkit::pool
