// A wait on the host for all work of the context, which breaks nobody's capture.
#pragma once

#include "base/checker.h"

namespace vramkit {

// One thread at a time, in its context and in relaxed capture mode.
//
// cuMemFree waits for whatever was issued before it, by anybody and on streams of any kind, and
// leaves captures alone; cuCtxSynchronize breaks every one of the context. That it waits is
// measured and not documented: docs/decisions.md.
class DeviceSync {
  public:
    DeviceSync(const DriverTable& call, const Checker& checker) : call_(call), checker_(checker) {}
    DeviceSync(const DeviceSync&) = delete;
    DeviceSync& operator=(const DeviceSync&) = delete;

    // False: nothing is known of what is under way.
    bool wait();
    // What a wait that failed has left.
    void give_back();
    // The driver no longer knows it.
    void forget();

  private:
    bool is_taken() const { return device_ != 0 || host_ != nullptr; }
    bool take();
    CUresult free();

    const DriverTable& call_;
    const Checker& checker_;
    CUdeviceptr device_ = 0;
    void* host_ = nullptr;
};

}  // namespace vramkit
