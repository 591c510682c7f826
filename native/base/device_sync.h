// A wait on the host for all work of the context, which breaks nobody's capture.
#pragma once

#include <mutex>
#include <vector>

#include "base/checker.h"

namespace vramkit {

// From any thread, in the context and in relaxed capture mode.
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
    // What waits that failed have left.
    void give_back();
    // The driver no longer knows it.
    void forget();

  private:
    struct Page {
        CUdeviceptr device = 0;
        void* host = nullptr;
    };

    bool take(Page& page);
    CUresult free(const Page& page) const;

    const DriverTable& call_;
    const Checker& checker_;
    std::mutex lock_;
    std::vector<Page> left_;  // that the driver refused to free
};

}  // namespace vramkit
