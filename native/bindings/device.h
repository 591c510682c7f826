// One GPU of a session and its primary context, which is retained on first use and kept until the
// process ends: to give it back can wait for the GPU, which nothing may do while Python exits.
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

    // The primary context of the present life of the driver. One lock, uncontended in practice.
    CUresult context(CUcontext* context);

  private:
    std::shared_ptr<Session> session_;
    int ordinal_;
    CUdevice handle_;
    std::mutex mutex_;
    CUcontext context_ = nullptr;
    uint64_t context_epoch_ = 0;
};

// Makes the device's context current: for the length of a scope where another one is, from now on
// where the thread has none.
class ContextScope {
  public:
    explicit ContextScope(Device& device);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

    CUresult result() const { return result_; }
    // Which call gave the result.
    const char* symbol() const { return symbol_; }

  private:
    const DriverTable& call_;
    CUresult result_ = CUDA_SUCCESS;
    const char* symbol_ = "cuDevicePrimaryCtxRetain";
    bool pushed_ = false;
};

}  // namespace vramkit
