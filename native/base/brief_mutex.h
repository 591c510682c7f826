// A mutex that is mostly held for less time than it takes to sleep and be woken: lock() spins for
// some microseconds before it sleeps.
#pragma once

#include <mutex>

namespace vramkit {

class BriefMutex {
  public:
    void lock() {
        for (int tries = 0; tries < kTries; ++tries) {
            if (mutex_.try_lock()) return;
            __builtin_ia32_pause();
        }
        mutex_.lock();
    }
    bool try_lock() { return mutex_.try_lock(); }
    void unlock() { mutex_.unlock(); }

  private:
    static constexpr int kTries = 100;
    std::mutex mutex_;
};

}  // namespace vramkit
