// One GPU of a session and its primary context, which is retained on first use and kept until the
// process ends: releasing it can wait for the GPU, which must not happen while Python exits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "bindings/session.h"

namespace vramkit {

class Device {
  public:
    Device(std::shared_ptr<Session> session, int ordinal, CUdevice handle);
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    const Session& session() const { return *session_; }
    const DriverTable& call() const { return session_->call(); }
    int ordinal() const { return ordinal_; }
    CUdevice handle() const { return handle_; }

    // The primary context of the driver's current epoch. One lock, uncontended in practice.
    CUresult context(CUcontext* context);

  private:
    std::shared_ptr<Session> session_;
    int ordinal_;
    CUdevice handle_;
    std::mutex mutex_;
    CUcontext context_ = nullptr;
    uint64_t context_epoch_ = 0;
};

// Makes the device's context current: for a scope if the thread has another one, for good if it has
// none.
class ContextScope {
  public:
    explicit ContextScope(Device& device);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

    CUresult result() const { return result_; }
    // The call that returned the result.
    const char* symbol() const { return symbol_; }

  private:
    const DriverTable& call_;
    CUresult result_ = CUDA_SUCCESS;
    const char* symbol_ = "cuDevicePrimaryCtxRetain";
    bool pushed_ = false;
};

}  // namespace vramkit
