// A driver call's result as a Failure.
#pragma once

#include "pool/types.h"

namespace vramkit::pool {

inline bool failed(CUresult result, const char* call, Failure& why) {
    if (result == CUDA_SUCCESS) return false;
    why.kind =
        result == CUDA_ERROR_OUT_OF_MEMORY ? Failure::Kind::out_of_memory : Failure::Kind::driver;
    why.code = result;
    why.call = call;
    return true;
}

// Memory that is short without a refusal of the driver. `what`: of which there is none, or empty
// where the caller's own limit stood in the way.
inline void note_shortage(const char* what, Failure& why) {
    why.kind = Failure::Kind::out_of_memory;
    why.code = CUDA_ERROR_OUT_OF_MEMORY;
    why.call = what;
}

}  // namespace vramkit::pool
