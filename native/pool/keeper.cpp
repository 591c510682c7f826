// The thread, and its end when the process exits: the driver must not be called while it goes.
#include "pool/keeper.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <vector>

#include "pool/threads.h"

namespace vramkit::pool {
namespace {

struct Running {
    std::mutex lock;
    bool exiting = false;
    std::vector<Keeper*> keepers;
};

// Never destroyed: threads may end while the process exits.
Running& running() {
    static Running& made = *std::make_unique<Running>().release();
    return made;
}

// Registered after the driver was opened, so that it runs before the driver's own end.
void stop_all_at_exit() {
    // In a fork the threads are not there, and the lock may be held by one of them.
    if (fork_count() > 0) return;
    std::vector<Keeper*> keepers;
    {
        const std::lock_guard guard(running().lock);
        running().exiting = true;
        keepers = running().keepers;
    }
    for (Keeper* keeper : keepers) keeper->stop();
}

}  // namespace

void Keeper::wake() {
    const std::lock_guard guard(lock_);
    woken_ = true;
    if (thread_.joinable()) {
        wanted_.notify_one();
        return;
    }
    if (stopping_) return;
    static const int once = std::atexit(&stop_all_at_exit);
    static_cast<void>(once);
    const std::lock_guard all(running().lock);
    if (running().exiting) return;
    try {
        thread_ = std::thread([this] { run(); });
        running().keepers.push_back(this);
    } catch (const std::system_error&) {
        // No thread is to be had; the next growth tries again.
    }
}

void Keeper::stop() {
    if (forgotten_) return;
    {
        const std::lock_guard guard(lock_);
        stopping_ = true;
        wanted_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
    const std::lock_guard all(running().lock);
    std::erase(running().keepers, this);
}

void Keeper::forget() {
    forgotten_ = true;
    // Kept for ever: to let go of it would ask after a thread that is not there.
    static_cast<void>(std::make_unique<std::thread>(std::move(thread_)).release());
}

void Keeper::run() {
    pthread_setname_np(pthread_self(), "vramkit-pool");
    std::unique_lock guard(lock_);
    while (!stopping_) {
        woken_ = false;
        guard.unlock();
        const std::int64_t pause = work_();
        guard.lock();
        wanted_.wait_for(guard, std::chrono::nanoseconds(pause),
                         [this] { return woken_ || stopping_; });
    }
}

}  // namespace vramkit::pool
