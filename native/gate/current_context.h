// The context of the calling thread, as a number for records.
#pragma once

#include <cstdint>

#include "driver/cuda_abi.h"
#include "gate/forwarding.h"

namespace vramkit::gate {

// Asks the driver, which keeps it in a thread-local. 0: none.
inline std::uint64_t current_context() {
    CUcontext context = nullptr;
    real_as<CUresult(CUcontext*)>(Export::cuCtxGetCurrent)(&context);
    return reinterpret_cast<std::uint64_t>(context);
}

}  // namespace vramkit::gate
