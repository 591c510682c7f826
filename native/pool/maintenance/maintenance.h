// What a pool does with time: by its background thread, or by step().
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
    // The lock is the pool's, and `closed` says that it was closed.
    Maintenance(Parts& parts, BriefMutex& lock, const std::atomic<bool>& closed)
        : parts_(parts), lock_(lock), closed_(closed), thread_([this] { return work(); }) {}
    Maintenance(const Maintenance&) = delete;
    Maintenance& operator=(const Maintenance&) = delete;

    // Once: idle memory back after its time, joined where it is in pieces, and some mapped ahead.
    // True: events are awaited, and more is to do soon.
    bool step();
    // With the pool's lock, after what may have taken memory from the driver: the thread, where the
    // pool has one, is started or woken.
    void notice();
    // With the pool's lock: settings that count time have changed.
    void configure(const Config& config);
    // The largest class asked for lately. With the pool's lock.
    ClassIndex largest_asked_for() const;
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
    ClassIndex largest_before_ = 0;                  // asked for in the interval before
    BackgroundThread thread_;                        // last: it ends first
};

}  // namespace vramkit::pool
