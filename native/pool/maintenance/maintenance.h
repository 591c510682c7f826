// What a pool does over time, on its background thread or by step().
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/brief_mutex.h"
#include "base/fork.h"
#include "pool/maintenance/background_thread.h"
#include "pool/parts.h"

namespace vramkit::pool {

class Maintenance {
  public:
    // The lock is the pool's; `closed` says whether the pool was closed.
    Maintenance(Parts& parts, BriefMutex& lock, const std::atomic<bool>& closed)
        : parts_(parts), lock_(lock), closed_(closed), thread_([this] { return work(); }) {}
    Maintenance(const Maintenance&) = delete;
    Maintenance& operator=(const Maintenance&) = delete;

    // One round: gives idle memory back after its decay time, joins fragmented idle memory, and
    // maps memory ahead if that is wanted. True: fences are pending, call again soon.
    bool step();
    // With the pool's lock, after memory may have been taken from the driver: starts or wakes the
    // thread, if the pool has one.
    void notice();
    // With the pool's lock: the settings are about to change.
    void configure(const Config& config);
    // The most bytes asked for at once in this defragmentation interval or the one before. With the
    // pool's lock.
    std::uint64_t largest_asked_for() const;
    // Ends the thread and waits for it. Not with the pool's lock.
    void stop() { thread_.stop(); }

  private:
    void decay();
    bool collect_leaving();
    std::int64_t work();

    Parts& parts_;
    BriefMutex& lock_;
    const std::atomic<bool>& closed_;
    const ForkGuard fork_;
    std::int64_t next_decay_ = 0, next_defrag_ = 0;  // 0: at the next step
    std::uint64_t largest_before_ = 0;               // of the interval before
    BackgroundThread thread_;                        // last: it ends first
};

}  // namespace vramkit::pool
