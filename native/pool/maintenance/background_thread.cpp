// The thread, which is stopped when the process exits: it must not call a driver that shuts down.
#include "pool/maintenance/background_thread.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork.h"

namespace vramkit::pool {

class BackgroundThread::Thread : public std::enable_shared_from_this<Thread> {
  public:
    explicit Thread(Work work) : work_(std::move(work)) {}

    void start();
    void wake();
    void stop();
    static void stop_all_at_exit();

  private:
    enum class Stage : std::uint8_t { none, running, joined_by_somebody, over };

    struct Running {
        std::mutex lock;
        bool exiting = false;
        std::vector<std::shared_ptr<Thread>> threads;
    };
    // Never destroyed: threads may end while the process exits.
    static Running& running() {
        static Running& made = *std::make_unique<Running>().release();
        return made;
    }
    void run();

    const Work work_;
    std::mutex lock_;  // taken before Running::lock
    std::condition_variable wanted_, ended_;
    bool woken_ = false;
    bool stopping_ = false;
    Stage stage_ = Stage::none;
    std::thread thread_;
};

namespace {

// A new pool is about to be used: the background thread keeps out of the way at first.
constexpr std::chrono::milliseconds kBeforeTheFirst{10};
constexpr std::chrono::seconds kAfterFailure{1};

}  // namespace

BackgroundThread::BackgroundThread(Work work)
    : thread_(std::make_shared<Thread>(std::move(work))) {}

void BackgroundThread::start() { thread_->start(); }

void BackgroundThread::wake() { thread_->wake(); }

void BackgroundThread::stop() { thread_->stop(); }

// Registered after the driver was opened, so that it runs before the driver's own end.
void BackgroundThread::Thread::stop_all_at_exit() {
    // In a forked child the threads do not exist, and one of them may hold the lock.
    if (fork_count() > 0) return;
    std::vector<std::shared_ptr<Thread>> threads;
    {
        const std::lock_guard guard(running().lock);
        running().exiting = true;
        threads = running().threads;
    }
    for (const auto& thread : threads) thread->stop();
}

void BackgroundThread::Thread::wake() {
    {
        const std::lock_guard guard(lock_);
        woken_ = true;
        wanted_.notify_one();
    }
    start();
}

void BackgroundThread::Thread::start() {
    const std::lock_guard guard(lock_);
    if (stopping_ || stage_ != Stage::none) return;
    static const int once = std::atexit(&stop_all_at_exit);
    static_cast<void>(once);
    const std::lock_guard all(running().lock);
    if (running().exiting) return;
    running().threads.push_back(shared_from_this());
    try {
        thread_ = std::thread([this] { run(); });
        stage_ = Stage::running;
    } catch (const std::system_error&) {
        // No thread could be started; the next growth tries again.
        running().threads.pop_back();
    }
}

void BackgroundThread::Thread::stop() {
    std::unique_lock guard(lock_);
    stopping_ = true;
    wanted_.notify_one();
    if (stage_ != Stage::running) {
        ended_.wait(guard, [this] { return stage_ != Stage::joined_by_somebody; });
        return;
    }
    stage_ = Stage::joined_by_somebody;
    std::thread ending = std::move(thread_);
    guard.unlock();
    ending.join();
    {
        const std::lock_guard all(running().lock);
        std::erase(running().threads, shared_from_this());
    }
    guard.lock();
    stage_ = Stage::over;
    ended_.notify_all();
}

void BackgroundThread::Thread::run() {
    pthread_setname_np(pthread_self(), "vramkit-pool");
    std::unique_lock guard(lock_);
    std::chrono::nanoseconds pause = kBeforeTheFirst;
    while (true) {
        wanted_.wait_for(guard, pause, [this] { return woken_ || stopping_; });
        if (stopping_) return;
        woken_ = false;
        guard.unlock();
        try {
            pause = std::chrono::nanoseconds(work_());
        } catch (const std::exception&) {
            // Most likely out of host memory. Nothing depends on this work, so try again later; a
            // library must not end the program.
            pause = kAfterFailure;
        }
        guard.lock();
    }
}

}  // namespace vramkit::pool
