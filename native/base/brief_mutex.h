// A mutex that is mostly held for less time than it takes to sleep and be woken: lock() spins for
// some microseconds before it sleeps.
#pragma once

#include <atomic>
#include <mutex>

namespace vramkit {

class BriefMutex {
  public:
    void lock() {
        if (mutex_.try_lock()) return;
        waiting_.fetch_add(1, std::memory_order_relaxed);
        lock_after_wait();
        waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    // Whether other threads wait for it now.
    bool is_contended() const { return waiting_.load(std::memory_order_relaxed) > 0; }
    bool try_lock() { return mutex_.try_lock(); }
    void unlock() { mutex_.unlock(); }

  private:
    static constexpr int kTries = 100;

    void lock_after_wait() {
        for (int tries = 1; tries < kTries; ++tries) {
            __builtin_ia32_pause();
            if (mutex_.try_lock()) return;
        }
        mutex_.lock();
    }

    std::mutex mutex_;
    std::atomic<int> waiting_{0};
};

}  // namespace vramkit
