// Groups of weights that live in blocks of a pool, and give them back when the pool is short: their
// bytes are in host memory too.
//
// 1. A group that is in use or pinned keeps its block. Of the others the one that was used last
//    gives way first: in a pass that is repeated it is needed last.
// 2. A block is freed in stream order, behind the work that used it: nothing waits on the host.
// 3. A group that gave way has no address (streamer.h) until its owner moves it to another one.
// 4. Where the pool fails to take a block back, the group has given way all the same, and the block
//    is freed with the next one.
// 5. The pool calls give_way() on whatever thread is short of memory, in the middle of anything: it
//    takes the locks below it only, and never Python's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/stream_ref.h"
#include "pool/pool.h"
#include "weights/streamer.h"

namespace vramkit::weights {

class GivingWay {
  public:
    // Blocks are allocated and freed on the stream, which must outlive this object, as the streamer
    // must. The stream has no other work.
    GivingWay(Streamer& streamer, std::shared_ptr<pool::Pool> pool, const StreamRef& stream);
    // Blocks that are left are freed, behind the work on them.
    ~GivingWay();
    GivingWay(const GivingWay&) = delete;
    GivingWay& operator=(const GivingWay&) = delete;

    // The group is in this block of the pool now, and may give way.
    void settle(GroupIndex group, std::uint64_t address, std::uint64_t bytes);
    // Groups in blocks of the pool.
    std::vector<GroupIndex> settled() const;
    // Frees blocks until so many bytes are free, or no group is left that can. Returns the bytes.
    std::uint64_t give_way(std::uint64_t bytes);
    // After a reset of the simulated GPU: there is nothing to free.
    void forget();

    struct Counts {
        std::uint64_t groups = 0;  // that gave way, each time counted
        std::uint64_t bytes = 0;   // that were freed
    };
    Counts counts() const;

  private:
    struct Block {
        std::uint64_t address = 0, bytes = 0;
    };
    struct Settled {
        GroupIndex group = 0;
        Block block;
    };
    // Returns the bytes. With the lock.
    std::uint64_t free_vacated();

    Streamer& streamer_;
    const std::shared_ptr<pool::Pool> pool_;
    const StreamRef stream_;
    mutable std::mutex lock_;  // before the streamer's and the pool's
    std::vector<Settled> settled_;
    std::vector<Block> vacated_;  // behind the work of groups that gave way, and not freed yet
    Counts counts_;
    std::uint64_t callback_ = 0;
};

}  // namespace vramkit::weights
