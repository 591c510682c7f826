// The pool's background thread: calls a function again and again, and when it is woken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace vramkit::pool {

class BackgroundThread {
  public:
    // What it does; returns how many nanoseconds to wait before the next time. What it throws is
    // taken for a bad moment: it is called again a second later.
    using Work = std::function<std::int64_t()>;

    explicit BackgroundThread(Work work);
    ~BackgroundThread() { stop(); }
    BackgroundThread(const BackgroundThread&) = delete;
    BackgroundThread& operator=(const BackgroundThread&) = delete;

    // The thread, where there is none. Without one to be had the pool does without: nothing depends
    // on it but the return of idle memory.
    void start();
    // The same; it works now.
    void wake();
    // Ends the thread and waits for it, whoever else does so too. Not from the work itself.
    void stop();

  private:
    class Thread;
    // The exit of the process may still end the thread when the background thread goes.
    const std::shared_ptr<Thread> thread_;
};

}  // namespace vramkit::pool
