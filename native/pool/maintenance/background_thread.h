// The pool's background thread: calls a function periodically, and when it is woken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace vramkit::pool {

class BackgroundThread {
  public:
    // The function; returns how many nanoseconds to wait before the next call. If it throws, it is
    // called again a second later.
    using Work = std::function<std::int64_t()>;

    explicit BackgroundThread(Work work);
    ~BackgroundThread() { stop(); }
    BackgroundThread(const BackgroundThread&) = delete;
    BackgroundThread& operator=(const BackgroundThread&) = delete;

    // Starts the thread if it does not run. If that fails, the pool works without it: only the
    // return of idle memory depends on it.
    void start();
    // The same, and calls the function now.
    void wake();
    // Ends the thread and waits for it; several threads may do so. Not from the function itself.
    void stop();

  private:
    class Thread;
    // Shared: the exit handler may still stop the thread when this object is destroyed.
    const std::shared_ptr<Thread> thread_;
};

}  // namespace vramkit::pool
