// An arena for each stream, supplied with superblocks from one slab. Streams, and so threads with a
// stream each, do not contend while their arenas have room; every thread's default stream has an
// arena of its own.
//
//   - A block goes back to the arena that it came from; when it is freed on another stream, the
//     arena's stream waits for that one on the GPU.
//   - When the slab is used up, the host waits for the card, and whole superblocks that are free
//     go back to it from every arena.
#pragma once

#include <map>
#include <mutex>
#include <shared_mutex>

#include "base/range_set.h"
#include "resources/plain_resource.h"
#include "resources/slab.h"

namespace vramkit::resources {

class Arena final : public PlainResource {
  public:
    static constexpr std::uint64_t kSuperblock = std::uint64_t{4} << 20;

    // Null and the reason on failure. The size is rounded up to whole superblocks.
    static std::shared_ptr<Arena> open(std::shared_ptr<Driver> driver, CUcontext context,
                                       std::uint64_t bytes, Failure& why);

    std::uint64_t reserved_bytes() const override { return slab_.bytes(); }
    std::uint64_t free_bytes() const override;

  private:
    struct OfStream {
        mutable std::mutex lock;
        RangeSet list;
    };

    Arena(std::shared_ptr<Driver> driver, CUcontext context)
        : PlainResource(std::move(driver), context, "Arena"), slab_(this->driver()) {}

    std::uint64_t take(std::uint64_t bytes, StreamRef stream, Failure& why) override;
    bool give(std::uint64_t address, const Block& block, StreamRef at, Failure& why) override;
    void give_back_everything() override;

    // Later work of the arena's own stream comes after what the other stream holds now.
    bool order(const StreamRef& own, const StreamRef& at, Failure& why);
    OfStream& arena_of(const StreamRef& stream);
    // Whole superblocks from the slab; 0 if it has none left.
    std::uint64_t take_superblocks(std::uint64_t bytes);
    void collect();

    // Lock order: the slab's, the map's, then those of the arenas, one at a time.
    mutable std::mutex lock_;
    Slab slab_;
    RangeSet global_;
    mutable std::shared_mutex arenas_lock_;
    std::map<std::uint64_t, OfStream> arenas_;  // by stream id; nodes stay where they are
};

}  // namespace vramkit::resources
