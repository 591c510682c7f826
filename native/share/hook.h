// Calls that the hooks of this library stand in for, named by the driver's exports.
#pragma once

#include "gate/call.h"
#include "gate/slots.h"

namespace vramkit::share {

using gate::Export;

using CallId = gate::CallIdOf<Export>;

template <class Function>
using Call = gate::CallOf<CallId, Function>;

// The stream among the arguments of a call; none: legacy, which no capture can be on.
template <class... Arguments>
CUstream stream_of(const CallId& call, const Arguments&... arguments) {
    CUstream found = VRAMKIT_STREAM_LEGACY;
    const auto look = [&]<class Argument>(const Argument& argument) {
        if constexpr (std::is_same_v<Argument, CUstream>) {
            found = call.stream(argument);
        } else if constexpr (std::is_same_v<Argument, const CUlaunchConfig*>) {
            if (argument != nullptr) found = call.stream(argument->hStream);
        }
    };
    (look(arguments), ...);
    return found;
}

}  // namespace vramkit::share
