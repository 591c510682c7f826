#include "share/worker.h"

#include "share/quiet_thread.h"

namespace vramkit::share {

void Worker::start(std::function<void()> job) {
    const std::lock_guard guard(lock_);
    job_ = std::move(job);
    busy_ = true;
    if (!has_thread_) {
        start_quiet_thread([this] { run(); });
        has_thread_ = true;
    }
    come_.notify_one();
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
