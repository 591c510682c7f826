// Python callables that run when a stream reaches them.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/device.h"

namespace vramkit {

// Enqueues a call of `function`, which is kept alive until it has run. Raises DriverError. A call
// that has not begun when Python exits never runs; exit waits for one that has.
void launch_host_function(Device& device, CUstream stream, nanobind::callable function);

}  // namespace vramkit
