// The scope of a slow path: makes the pool's context current, and sets a capture mode in which our
// driver calls break no graph capture.
#pragma once

#include "driver/table.h"

namespace vramkit {

class SlowPathScope {
  public:
    // From now on a thread that had no current context has none afterwards: in a program that does
    // not know of us. Before the first scope.
    static void leave_no_context() { leaves_context_ = false; }

    SlowPathScope(const DriverTable& call, CUcontext context) : call_(call) {
        CUcontext current = nullptr;
        const bool known = call_.cuCtxGetCurrent(&current) == CUDA_SUCCESS;
        if (known && current == nullptr && leaves_context_) {
            // Nothing to restore: like the CUDA runtime, leave our context current.
            call_.cuCtxSetCurrent(context);
        } else {
            pushed_ = !(known && current == context) &&
                      call_.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
        }
        relaxed_ = call_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
    }
    ~SlowPathScope() {
        if (relaxed_) call_.cuThreadExchangeStreamCaptureMode(&mode_);
        CUcontext popped = nullptr;
        if (pushed_) call_.cuCtxPopCurrent_v2(&popped);
    }
    SlowPathScope(const SlowPathScope&) = delete;
    SlowPathScope& operator=(const SlowPathScope&) = delete;

  private:
    static inline constinit bool leaves_context_ = true;

    const DriverTable& call_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool pushed_ = false;
    bool relaxed_ = false;
};

}  // namespace vramkit
