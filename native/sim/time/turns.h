// Turns on the lanes of a card that several processes share.
#pragma once

#include "sim/time/operation.h"

namespace vramkit::sim {

// A stretch of time in which a lane is this process's own. `rate`: how much of it is left for work.
struct Turn {
    double start = 0;
    double end = 0;
    double rate = 1;
};

// What the core asks of the other processes' side. Times are those of the core.
class Turns {
  public:
    virtual ~Turns() = default;
    // The next turn, no earlier than `from`, for work that takes `needed` alone. more: other work
    // of the lane follows at once, so that a whole turn is of use.
    virtual Turn take(Lane lane, double from, double needed, bool more) = 0;
    // The rest of a turn is not needed. False: somebody has taken the next one already, and the
    // turn is still this process's.
    virtual bool give_back(Lane lane, const Turn& turn, double at) = 0;
    // Whether another process has a turn now, or waits for one.
    virtual bool used_by_others(Lane lane, double at) = 0;
};

}  // namespace vramkit::sim
