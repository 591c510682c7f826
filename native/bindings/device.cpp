// Retains the primary context and makes it current.
#include "bindings/device.h"

#include <utility>

namespace vramkit {

Device::Device(std::shared_ptr<Session> session, int ordinal, CUdevice handle)
    : session_(std::move(session)), ordinal_(ordinal), handle_(handle) {}

CUresult Device::context(CUcontext* context) {
    const std::lock_guard lock(mutex_);
    const uint64_t epoch = session_->epoch();
    if (context_ == nullptr || context_epoch_ != epoch) {
        context_ = nullptr;
        // A reset may have brought another profile with fewer devices; the driver says so here.
        const CUresult found = call().cuDeviceGet(&handle_, ordinal_);
        if (found != CUDA_SUCCESS) return found;
        const CUresult retained = call().cuDevicePrimaryCtxRetain(&context_, handle_);
        if (retained != CUDA_SUCCESS) {
            context_ = nullptr;
            return retained;
        }
        context_epoch_ = epoch;
    }
    *context = context_;
    return CUDA_SUCCESS;
}

ContextScope::ContextScope(Device& device) : call_(device.call()) {
    CUcontext own = nullptr;
    result_ = device.context(&own);
    if (result_ != CUDA_SUCCESS) return;
    CUcontext current = nullptr;
    symbol_ = "cuCtxGetCurrent";
    result_ = call_.cuCtxGetCurrent(&current);
    if (result_ != CUDA_SUCCESS || current == own) return;
    if (current == nullptr) {
        // Nothing to restore: like the CUDA runtime, leave our context current.
        symbol_ = "cuCtxSetCurrent";
        result_ = call_.cuCtxSetCurrent(own);
        return;
    }
    symbol_ = "cuCtxPushCurrent_v2";
    result_ = call_.cuCtxPushCurrent_v2(own);
    pushed_ = result_ == CUDA_SUCCESS;
}

ContextScope::~ContextScope() {
    CUcontext popped = nullptr;
    if (pushed_) call_.cuCtxPopCurrent_v2(&popped);
}

}  // namespace vramkit
