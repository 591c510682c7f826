// Makes one driver call for Python: context current, GIL released, result checked.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/device.h"
#include "bindings/errors.h"
#include "bindings/gil.h"

namespace vramkit {

struct CallResult {
    CUresult result;
    const char* symbol;
};

// The GIL is released around every driver call, not only around those that wait: a call may block
// on a full queue or on the driver's own locks, behind work that ends in a Python host function.
// Costs about 24 ns.
template <typename Function, typename... Arguments>
CallResult call_released(Device& device, Function function, const char* symbol,
                         Arguments... arguments) {
    const GilReleased released;
    const ContextScope scope(device);
    if (scope.result() != CUDA_SUCCESS) return {scope.result(), scope.symbol()};
    return {function(arguments...), symbol};
}

template <typename Function, typename... Arguments>
void invoke(Device& device, Function function, const char* symbol, Arguments... arguments) {
    const CallResult done = call_released(device, function, symbol, arguments...);
    check(device.session().driver(), done.result, done.symbol);
}

}  // namespace vramkit

// The symbol is both the member of the table and the name that an error carries.
#define VRAMKIT_INVOKE(device, symbol, ...) \
    ::vramkit::invoke((device), (device).call().symbol, #symbol __VA_OPT__(, ) __VA_ARGS__)
