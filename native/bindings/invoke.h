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
// Costs about 24 ns. Raises ClosedError in a forked child.
template <typename Function, typename... Arguments>
CallResult call_released(Device& device, Function function, const char* symbol,
                         Arguments... arguments) {
    device.session().require_own_process();
    const GilReleased released;
    const ContextScope scope(device);
    if (scope.result() != CUDA_SUCCESS) return {scope.result(), scope.symbol()};
    return {function(arguments...), symbol};
}

// For calls that need no context and return at once.
template <typename Function, typename... Arguments>
void ask(const Session& session, Function function, const char* symbol, Arguments... arguments) {
    session.require_own_process();
    check(session.driver(), function(arguments...), symbol);
}

inline void check_call(const Device& device, const CallResult& done) {
    check(device.session().driver(), done.result, done.symbol);
}

template <typename Function, typename... Arguments>
void invoke(Device& device, Function function, const char* symbol, Arguments... arguments) {
    check_call(device, call_released(device, function, symbol, arguments...));
}

}  // namespace vramkit

// The symbol is both the member of the table and the name in an error.
#define VRAMKIT_ASK(session, symbol, ...) \
    ::vramkit::ask((session), (session).call().symbol, #symbol __VA_OPT__(, ) __VA_ARGS__)
#define VRAMKIT_INVOKE(device, symbol, ...) \
    ::vramkit::invoke((device), (device).call().symbol, #symbol __VA_OPT__(, ) __VA_ARGS__)
