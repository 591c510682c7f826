// A driver call that a hook stands in for: which one it is, and the driver's own function.
#pragma once

#include "driver/cuda_abi.h"

namespace vramkit::gate {

// What is common to all calls: `name` is how a list of hooks names them. `per_thread` says whether
// handle 0 means the legacy default stream or that of the calling thread.
template <class Name>
struct CallIdOf {
    Name name;
    bool per_thread;

    CUstream stream(CUstream given) const {
        if (given != nullptr) return given;
        return per_thread ? VRAMKIT_STREAM_PER_THREAD : VRAMKIT_STREAM_LEGACY;
    }
};

template <class Id, class Function>
struct CallOf;

template <class Id, class... Arguments>
struct CallOf<Id, CUresult(Arguments...)> : Id {
    CUresult (*real)(Arguments...);

    CUresult operator()(Arguments... arguments) const { return real(arguments...); }
};

}  // namespace vramkit::gate
