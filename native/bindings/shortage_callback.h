// A Python function that a pool asks for memory.
#pragma once

#include <nanobind/nanobind.h>

#include "pool/shortage.h"

namespace vramkit {

// What the function raises, and what it returns that is no number of bytes, goes to
// sys.unraisablehook and counts as nothing freed.
pool::Shortage::Callback shortage_callback(nanobind::callable function);

}  // namespace vramkit
