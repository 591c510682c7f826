#include "share/worker.h"

#include <system_error>

#include "share/quiet_thread.h"

namespace vramkit::share {

bool Worker::start(std::function<void()> job) {
    const std::lock_guard guard(lock_);
    if (!has_thread_) {
        try {
            start_quiet_thread([this] { run(); });
        } catch (const std::system_error&) {
            return false;
        }
        has_thread_ = true;
    }
    job_ = std::move(job);
    busy_ = true;
    come_.notify_one();
    return true;
}

bool Worker::is_busy() {
    const std::lock_guard guard(lock_);
    return busy_;
}

void Worker::run() {
    std::unique_lock guard(lock_);
    for (;;) {
        come_.wait(guard, [this] { return busy_; });
        const std::function<void()> job = std::move(job_);
        guard.unlock();
        job();
        guard.lock();
        busy_ = false;
    }
}

}  // namespace vramkit::share
