// What the gate and the library that keeps a program's memory (native/share) tell each other. The
// gate itself needs libc alone; that library is loaded only where a program shares its card.
#pragma once

#include <atomic>
#include <cstddef>

#include "gate/slots.h"

namespace vramkit::gate {

// One form of a driver call, and the function that stands in for it.
struct AddedHook {
    const char* base;  // the name that programs ask cuGetProcAddress for
    int since;         // the CUDA version that brought it
    Export name;
    bool per_thread;  // the form for per-thread default streams
    void* function;
};

struct AddedHooks {
    const AddedHook* hooks = nullptr;
    std::size_t count = 0;
};

// What is beneath the gate. All of it stays valid.
struct Beneath {
    void* driver;                     // of dlopen
    const char* path;                 // of its library
    const std::atomic<void*>* calls;  // the driver's own functions, by Export
};

// Exported by libvramkit_share.so as vramkitShareStart. Called before the first call reaches the
// driver, by several threads at once where they come together: all get the same. Null: nothing is
// to be hooked. Makes no driver call.
using StartSharing = const AddedHooks*(const Beneath& beneath);

}  // namespace vramkit::gate
