// The thread behind the program's own: runs host functions, and keeps clocks going.
#pragma once

#include "sim/machine/simulation.h"

namespace vramkit::sim {

// Starts it where it does not run yet; the lock is held. It never ends.
void start_background(Simulation& all);

}  // namespace vramkit::sim
