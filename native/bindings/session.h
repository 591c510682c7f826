// An opened driver and its epoch. A reset of the simulated GPU invalidates every handle and begins
// a new epoch: objects of an earlier one must not make calls in it. A forked child has no driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/fork.h"
#include "driver/driver.h"

namespace vramkit {

class Session {
  public:
    explicit Session(std::shared_ptr<Driver> driver);

    const Driver& driver() const { return *driver_; }
    const std::shared_ptr<Driver>& shared_driver() const { return driver_; }
    const DriverTable& call() const { return driver_->call(); }

    bool simulated() const { return simulated_; }
    uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
    void begin_next_epoch() { epoch_.fetch_add(1, std::memory_order_acq_rel); }

    // True in a child forked from the process that opened the driver: CUDA does not survive a fork,
    // so no call is made there.
    bool forked() const { return fork_.forked(); }
    // Raises ClosedError in a forked child, of the driver or of an object of it ("this Stream").
    void require_own_process(const char* what = "the driver") const {
        if (forked()) [[unlikely]]
            refuse_forked(what);
    }

    // Whether a wait takes real time. Not on the virtual clock of the simulated GPU, where it is
    // one call that returns at once. The simulated GPU is asked once in each epoch.
    bool waits_in_real_time() const;

  private:
    [[noreturn]] static void refuse_forked(const char* what);
    bool has_wall_clock() const;

    std::shared_ptr<Driver> driver_;
    bool simulated_;
    ForkGuard fork_;
    std::atomic<uint64_t> epoch_{0};
    // Epoch + 1 of the last answer, doubled, plus the answer; 0: never asked.
    mutable std::atomic<uint64_t> wall_clock_{0};
};

}  // namespace vramkit
