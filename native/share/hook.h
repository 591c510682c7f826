// A driver call that a hook stands in for: which one it is, and the driver's own function.
#pragma once

#include "driver/cuda_abi.h"
#include "gate/slots.h"

namespace vramkit::share {

using gate::Export;

struct CallId {
    Export name;
    bool per_thread;  // handle 0 means the default stream of the calling thread

    CUstream stream(CUstream given) const {
        if (given != nullptr) return given;
        return per_thread ? VRAMKIT_STREAM_PER_THREAD : VRAMKIT_STREAM_LEGACY;
    }
};

template <class Function>
struct Call;

template <class... Arguments>
struct Call<CUresult(Arguments...)> : CallId {
    CUresult (*real)(Arguments...);

    CUresult operator()(Arguments... arguments) const { return real(arguments...); }
};

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
