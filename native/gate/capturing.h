// Whether a call goes into a graph that is being captured. Such calls do nothing yet.
#pragma once

#include "gate/hooks.h"

namespace vramkit::gate {

// From now on streams are asked. A program that never captures does not pay for it.
void note_capture();

// Asks the driver where a capture has begun in this process at any time, else costs one load.
bool is_capturing(const CallId& call, CUstream stream);

}  // namespace vramkit::gate
