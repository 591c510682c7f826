// What all parts of one pool share: the driver, the device, its context and its clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/checker.h"
#include "base/scopes.h"
#include "driver/driver.h"

namespace vramkit::pool {

struct DeviceContext {
    DeviceContext(std::shared_ptr<Driver> opened, int ordinal, CUcontext primary,
                  std::uint64_t total)
        : driver(std::move(opened)),
          call(driver->call()),
          device(ordinal),
          context(primary),
          bytes(total),
          checker(*driver),
          clock_(reinterpret_cast<double (*)()>(driver->symbol("simNow"))) {}

    // For the scope of a slow path: our context, and a capture mode that breaks no capture.
    SlowPathScope enter() const { return SlowPathScope(call, context); }
    // Nanoseconds. By the clock of the simulated GPU if there is one: its time is not real time.
    std::int64_t now() const {
        if (clock_ != nullptr) return static_cast<std::int64_t>(clock_());
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    const std::shared_ptr<Driver> driver;
    const DriverTable& call;
    const int device;
    const CUcontext context;
    const std::uint64_t bytes;
    const Checker checker;
    // The simulated GPU was reset: the driver knows none of our objects. With the pool's lock.
    bool forgotten = false;

  private:
    double (*const clock_)();
};

}  // namespace vramkit::pool
