// Python code on a thread that may not hold the GIL, or that Python does not know.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/gil.h"

namespace vramkit {

// Does nothing while Python exits.
template <class Body>
void in_python(Body body) {
    const InsideGate gate;
    if (!gate.entered()) return;
    const nanobind::gil_scoped_acquire acquired;
    if (acquired.is_valid()) body();
}

}  // namespace vramkit
