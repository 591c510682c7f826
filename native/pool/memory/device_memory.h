// Memory that a pool took from the driver: mapped, cut into blocks, idle until it is handed out.
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
    bool is_open() const { return extents_ != nullptr; }
    void configure(const Config& config);

    // An idle block of the class, without a driver call; makes a new slab if none has one. Null
    // slab: there is none.
    BlockRef take_idle(ClassIndex index, std::uint64_t batch);
    // The same from existing slabs.
    BlockRef take_more(ClassIndex index) { return slabs_->take(index); }
    // The block becomes idle: all its work is done.
    void give_idle(BlockRef block);
    // Segments without a block in use become idle extents. dissolve_idle: wholly idle slabs
    // dissolve first.
    void free_segments(bool dissolve_idle);
    // New memory from the driver.
    BlockRef grow(ClassIndex index, std::uint64_t bytes, std::uint64_t batch, Failure& why);
    // Idle memory of other sizes, remapped side by side; if that fails, idle memory goes back to
    // the driver and new memory is taken.
    BlockRef put_together(ClassIndex index, std::uint64_t bytes, std::uint64_t batch, Failure& why);
    // Memory that a stream has freed, remapped for the same stream, while its work may still run
    // (remap.cpp).
    BlockRef put_together_own(const std::shared_ptr<StreamCache>& stream_cache, std::uint64_t bytes,
                              Failure& why);
    // A large block for the stream, split from or joined of its free ones (split_join.cpp). From
    // any thread, with no lock held.
    BlockRef split_or_join(StreamCache& stream_cache, ClassIndex index, std::uint64_t cut_up_to);
    // Makes blocks for later, as many as there is memory for. False and the reason: not all.
    bool preallocate(ClassIndex index, std::uint64_t count, Failure& why);
    // How many blocks of a class there can be at most, with those that are idle already.
    std::uint64_t could_have(ClassIndex index, std::uint64_t card_free) const;

    // Gives memory back to the driver that became idle before that time: all of it, or a few
    // handles; `more`: others are left. Returns the bytes released.
    std::uint64_t release_idle(std::int64_t idle_before);
    std::uint64_t release_some(std::int64_t idle_before, bool& more);
    // Remaps all idle memory side by side. Returns the bytes moved.
    std::uint64_t join_idle(Failure& why);
    // Unmaps some old mappings of moved memory. True: none are left.
    bool unmap_old();
    void unmap_all_old();
    // Maps the next segment, if one is wanted and the card has room.
    void map_ahead();
    void want_segment(bool wanted) { segment_wanted_ = wanted; }
    // Since the last call: whether memory was taken from the driver; a segment became wanted.
    bool take_grown() { return std::exchange(grown_, false); }
    bool take_newly_wanted() { return std::exchange(newly_wanted_, false); }

    // Counts memory straight from the driver, outside of our addresses (direct_blocks.h).
    void add_direct(std::uint64_t bytes);
    void remove_direct(std::uint64_t bytes) { direct_bytes_ -= bytes; }
    // Bytes that may still be taken from the driver.
    std::uint64_t may_grow() const;
    // The largest handle that may be cut for a request of so many bytes. From any thread.
    std::uint64_t cut_up_to(std::uint64_t bytes) const;

    std::uint64_t most_bytes() const { return most_bytes_; }  // from any thread
    std::uint64_t mapped() const { return extents_->mapped(); }
    std::uint64_t reserved() const { return mapped() + direct_bytes_; }
    std::uint64_t peak_reserved() const { return peak_reserved_; }
    void reset_peak() { peak_reserved_ = reserved(); }
    // Memory cannot move: the addresses are one allocation.
    bool is_fixed() const { return addresses_->have_memory(); }
    const Addresses& addresses() const { return *addresses_; }
    PageMap& page_map() { return *page_map_; }
    const Slabs& slabs() const { return *slabs_; }
    LargeBlocks& large() { return *large_; }
    const LargeBlocks& large() const { return *large_; }
    const Extents& extents() const { return *extents_; }
    NvtxMarks* nvtx() { return nvtx_.get(); }  // null: off, or there is no tool

    // Gives the addresses back to the driver, when nothing is mapped; or everything.
    void give_addresses_back();
    void give_everything_back();
    // After a reset: the driver no longer knows anything.
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
