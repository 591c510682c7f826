// When the copies of a group began and ended.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/failure.h"

namespace vramkit::weights {

// Events around the last two copies, in turn: one copy may be for a pass that has not begun. A
// failure of the driver between begins() and ends() loses the time only. Not safe between threads.
class CopyTimer {
  public:
    // From now on copies are timed.
    bool make(const DriverTable& call, Failure& why);
    void destroy(const DriverTable& call);
    // Around what is issued of a copy. Nothing happens before make().
    void begins(const DriverTable& call, CUstream stream);
    void ends(const DriverTable& call, CUstream stream);
    // Adds the begin and end of each, in seconds from an event on. Waits on the host.
    bool times(const DriverTable& call, CUevent since, std::vector<std::pair<double, double>>& out,
               Failure& why) const;

  private:
    struct Copy {
        CUevent began = nullptr, ended = nullptr;
        bool done = false;  // both were recorded
    };
    std::array<Copy, 2> copies_;
    std::size_t now_ = 0;
};

}  // namespace vramkit::weights
