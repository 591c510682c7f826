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

    // For the time of a slow path: the context, and a capture mode that breaks nobody's capture.
    SlowPathScope enter() const { return SlowPathScope(call, context); }
    // Nanoseconds, by the driver's clock where it has one: simulated time passes in its own way.
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
    // The driver has forgotten all there was, after a reset of the simulated GPU. With the pool's
    // lock.
    bool forgotten = false;

  private:
    double (*const clock_)();
};

}  // namespace vramkit::pool
