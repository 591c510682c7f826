// Finds the driver that the gate forwards to.
#pragma once

#include "gate/path.h"

namespace vramkit::gate {

struct Found {
    void* handle = nullptr;  // of dlopen; null: there is no driver
    Path path;
    Path reason;  // why there is none, as a sentence
};

// VRAMKIT_GATE_DRIVER names a library. VRAMKIT_DRIVER=sim, or sim:PROFILE, is the simulated GPU
// that is installed beside the gate. Else libcuda.so.1 is searched for as the dynamic linker does
// for the program, passing over this library and others of its kind.
//
// Threads may search at the same time: all find the same. No lock is held, since a thread that
// loads a library may hold the linker's and wait for ours.
Found find_driver();

}  // namespace vramkit::gate
