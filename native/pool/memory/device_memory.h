// Memory that a pool has from the driver: mapped, cut into blocks, and nobody's until it is taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "pool/blocks/large_blocks.h"
#include "pool/blocks/page_map.h"
#include "pool/blocks/slabs.h"
#include "pool/config.h"
#include "pool/device_context.h"
#include "pool/memory/addresses.h"
#include "pool/memory/extents.h"
#include "pool/nvtx/nvtx.h"

namespace vramkit::pool {

// With the pool's lock, in its context, where nothing else is said.
class DeviceMemory {
  public:
    // `counters` are those of slow paths.
    DeviceMemory(const DeviceContext& card, Stats& counters) : card_(card), counters_(counters) {}
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;

    // Takes addresses for all that the card has. False and the reason: there is nothing to end.
    bool open(const Config& config, Failure& why);
    // False: open() failed, or has not been called.
    bool is_open() const { return extents_ != nullptr; }
    void configure(const Config& config);

    // Idle memory, without a driver call: a block of the class, from a new slab where none has one.
    // Null slab: there is none.
    BlockRef take_idle(ClassIndex index, std::uint64_t batch);
    // The same from slabs that are there.
    BlockRef take_more(ClassIndex index) { return slabs_->take(index); }
    // The block is nobody's: all its work is done.
    void give_idle(BlockRef block);
    // Segments without a block in use become idle extents; slabs that are wholly idle dissolve
    // first where asked to.
    void free_segments(bool dissolve_idle);
    // New memory from the driver.
    BlockRef grow(ClassIndex index, std::uint64_t bytes, std::uint64_t batch, Failure& why);
    // Idle memory of other sizes, mapped side by side; what is too large for that goes back to the
    // driver, and what is needed is taken again.
    BlockRef put_together(ClassIndex index, std::uint64_t bytes, std::uint64_t batch, Failure& why);
    // What a stream has freed, at new addresses for the same stream, while its work may be under
    // way (remap.cpp).
    BlockRef put_together_own(const std::shared_ptr<StreamCache>& stream_cache, std::uint64_t bytes,
                              Failure& why);
    // A large block for the stream out of what it has free, joined and split (split_join.cpp). From
    // any thread, with no lock held.
    BlockRef split_or_join(StreamCache& stream_cache, ClassIndex index, std::uint64_t cut_up_to);
    // Blocks for later, all or as many as there is memory for. False and the reason: not all.
    bool preallocate(ClassIndex index, std::uint64_t count, Failure& why);
    // How many of a class could be had at most, those that are idle included.
    std::uint64_t could_have(ClassIndex index, std::uint64_t card_free) const;

    // Gives memory back to the driver that is idle since before that time; at most so many handles.
    // The bytes that went; `more`: others could go.
    std::uint64_t release_idle(std::int64_t idle_before);
    std::uint64_t release_some(std::int64_t idle_before, bool& more);
    // Brings all idle memory side by side. The bytes that moved.
    std::uint64_t join_idle(Failure& why);
    // Unmaps what has moved away. True: nothing is left to unmap.
    bool unmap_old();
    void unmap_all_old();
    // The next segment, where one is wanted and the card has room.
    void map_ahead();
    void want_segment(bool wanted) { segment_wanted_ = wanted; }
    // Since the last question: memory was taken from the driver; a segment is wanted ahead.
    bool take_grown() { return std::exchange(grown_, false); }
    bool take_newly_wanted() { return std::exchange(newly_wanted_, false); }

    // Straight from the driver, without addresses of ours (direct_blocks.h).
    void add_direct(std::uint64_t bytes);
    void remove_direct(std::uint64_t bytes) { direct_bytes_ -= bytes; }
    // Bytes that may still be taken from the driver.
    std::uint64_t may_grow() const;
    // Whole handles of how many bytes are cut for so many. From any thread.
    std::uint64_t cut_up_to(std::uint64_t bytes) const;

    std::uint64_t most_bytes() const { return most_bytes_; }  // from any thread
    std::uint64_t mapped() const { return extents_->mapped(); }
    std::uint64_t reserved() const { return mapped() + direct_bytes_; }
    std::uint64_t peak_reserved() const { return peak_reserved_; }
    void reset_peak() { peak_reserved_ = reserved(); }
    // Where nothing moves, since the addresses have memory of their own.
    bool is_fixed() const { return addresses_->have_memory(); }
    const Addresses& addresses() const { return *addresses_; }
    PageMap& page_map() { return *page_map_; }
    const Slabs& slabs() const { return *slabs_; }
    LargeBlocks& large() { return *large_; }
    const LargeBlocks& large() const { return *large_; }
    const Extents& extents() const { return *extents_; }
    NvtxMarks* nvtx() { return nvtx_.get(); }  // null: off, or nobody listens

    // To the driver: the addresses, where nothing is mapped in them, or everything.
    void give_addresses_back();
    void give_everything_back();
    // The driver no longer knows anything.
    void forget_driver();

  private:
    bool add_segment(Failure& why);
    std::uint64_t next_segment_bytes() const;
    std::uint64_t handle_bytes() const;
    bool has_segment_ahead() const;
    void note_growth();
    void look_ahead();
    bool preallocate_large(std::uint64_t bytes, std::uint64_t count, Failure& why);

    const DeviceContext& card_;
    Stats& counters_;
    std::uint64_t limit_ = 0;
    std::atomic<std::uint64_t> most_bytes_{0};  // that the pool may have
    std::unique_ptr<Addresses> addresses_;
    std::unique_ptr<PageMap> page_map_;
    std::unique_ptr<NvtxMarks> nvtx_;
    std::unique_ptr<Extents> extents_;
    SlabRecords records_;
    std::unique_ptr<Slabs> slabs_;
    std::unique_ptr<LargeBlocks> large_;
    std::uint64_t direct_bytes_ = 0;
    std::uint64_t peak_reserved_ = 0;
    bool segment_wanted_ = false;  // by map_ahead()
    bool grown_ = false, newly_wanted_ = false;
};

}  // namespace vramkit::pool
