// The pool's background thread: calls a function again and again, and when it is woken.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace vramkit::pool {

class Keeper {
  public:
    // What it does; returns how many nanoseconds to wait before the next time.
    using Work = std::function<std::int64_t()>;

    explicit Keeper(Work work) : work_(std::move(work)) {}
    ~Keeper() { stop(); }
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;

    // Starts the thread where there is none; else has it work now. Without a thread to be had the
    // pool does without: nothing depends on it but the return of idle memory.
    void wake();
    // Ends the thread and waits for it. Not from the work itself.
    void stop();
    // In a fork the thread is not there, and its lock may be held for ever.
    void forget();

  private:
    void run();

    const Work work_;
    std::mutex lock_;
    std::condition_variable wanted_;
    bool woken_ = false;
    bool stopping_ = false;
    bool forgotten_ = false;
    std::thread thread_;
};

}  // namespace vramkit::pool
