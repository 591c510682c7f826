// The classic pool: one slab of a given size, best fit with joined neighbours, one lock. Free
// memory is kept by the stream that freed it last.
//
//   - A stream reuses its own free memory at once.
//   - It takes that of another stream after waiting, on the GPU, for the event behind the last free
//     there.
//   - If no single range is large enough, it waits for all streams and joins their ranges.
#pragma once

#include <mutex>
#include <unordered_map>

#include "base/range_set.h"
#include "resources/plain_resource.h"
#include "resources/slab.h"

namespace vramkit::resources {

class FixedPool final : public PlainResource {
  public:
    // Null and the reason on failure.
    static std::shared_ptr<FixedPool> open(std::shared_ptr<Driver> driver, CUcontext context,
                                           std::uint64_t bytes, Failure& why);

    std::uint64_t reserved_bytes() const override { return slab_.bytes(); }
    std::uint64_t free_bytes() const override;

  private:
    struct Freed {
        RangeSet list;
        CUevent event = nullptr;  // behind all use of what is in the list
    };

    FixedPool(std::shared_ptr<Driver> driver, CUcontext context)
        : PlainResource(std::move(driver), context, "FixedPool"), slab_(this->driver()) {}

    std::uint64_t take(std::uint64_t bytes, StreamRef stream, Failure& why) override;
    bool give(std::uint64_t address, const Block& block, StreamRef at, Failure& why) override;
    void give_back_everything() override;

    // With the lock held.
    std::uint64_t find(std::uint64_t size, StreamRef stream, Failure& why);
    bool record(Freed& freed, StreamRef stream, Failure& why);
    bool wait_for(const Freed& freed, StreamRef stream, Failure& why);

    mutable std::mutex lock_;
    Slab slab_;
    RangeSet unused_;                                 // never handed out: needs no wait
    std::unordered_map<std::uint64_t, Freed> freed_;  // by stream id
};

}  // namespace vramkit::resources
