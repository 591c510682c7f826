// An opened driver as the bound objects share it, with the count of its lives: the simulated GPU
// forgets every handle on a reset, and an object of an earlier life must not touch a later one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "driver/driver.h"

namespace vramkit {

class Session {
  public:
    explicit Session(std::shared_ptr<Driver> driver) : driver_(std::move(driver)) {}

    const Driver& driver() const { return *driver_; }
    const std::shared_ptr<Driver>& shared_driver() const { return driver_; }
    const DriverTable& call() const { return driver_->call(); }

    uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
    void begin_next_epoch() { epoch_.fetch_add(1, std::memory_order_acq_rel); }

  private:
    std::shared_ptr<Driver> driver_;
    std::atomic<uint64_t> epoch_{0};
};

}  // namespace vramkit
