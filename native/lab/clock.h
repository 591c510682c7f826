// The clock that a driver's work is timed by: the simulated GPU's own, or the host's steady one.
#pragma once

#include <chrono>

#include "driver/driver.h"

namespace vramkit::lab {

// A look takes about 25 ns; on the simulated GPU it takes no simulated time.
class Clock {
  public:
    explicit Clock(const Driver& driver)
        : now_(reinterpret_cast<double (*)()>(driver.symbol("simNow"))),
          advance_(reinterpret_cast<int (*)(double)>(driver.symbol("simAdvance"))) {}

    // Nanoseconds. On the virtual clock each thread has its own time.
    double now() const {
        if (now_ != nullptr) return now_();
        using Nanoseconds = std::chrono::duration<double, std::nano>;
        return Nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    bool simulated() const { return now_ != nullptr; }
    // The thread has waited for another one until `moment`. Real time has passed by itself: the
    // wall clock of the simulated GPU refuses.
    void catch_up(double moment) const {
        if (advance_ == nullptr) return;
        const double behind = moment - now_();
        if (behind > 0) advance_(behind);
    }

  private:
    double (*now_)();
    int (*advance_)(double);
};

}  // namespace vramkit::lab
