// The pool's background thread: calls a function again and again, and when it is woken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace vramkit::pool {

class Keeper {
  public:
    // What it does; returns how many nanoseconds to wait before the next time. What it throws is
    // taken for a bad moment: it is called again a second later.
    using Work = std::function<std::int64_t()>;

    explicit Keeper(Work work);
    ~Keeper() { stop(); }
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;

    // The thread, where there is none. Without one to be had the pool does without: nothing depends
    // on it but the return of idle memory.
    void start();
    // The same; it works now.
    void wake();
    // Ends the thread and waits for it, whoever else does so too. Not from the work itself.
    void stop();

  private:
    class Thread;
    // The exit of the process may still end the thread when the keeper goes.
    const std::shared_ptr<Thread> thread_;
};

}  // namespace vramkit::pool
