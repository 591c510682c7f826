// The driver behind the gate: opened at the first call, with the address of each of its calls.
#pragma once

#include "gate/slots.h"

namespace vramkit::gate {

namespace detail {
extern std::array<std::atomic<void*>, kExports> reals;
}

// The driver's own function, or one that answers in its place where the driver lacks it or there is
// none. Valid in any hook: a hook is only reached after the driver was opened.
inline void* real(Export name) {
    return detail::reals[number(name)].load(std::memory_order_relaxed);
}

template <class Function>
Function* real_as(Export name) {
    return reinterpret_cast<Function*>(real(name));
}

// The driver gave out this function for a call that it does not export: its hook calls that.
void use_if_missing(Export name, void* function);

}  // namespace vramkit::gate
