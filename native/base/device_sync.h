// A wait on the host for all work of the context that breaks no capture.
#pragma once

#include <mutex>
#include <vector>

#include "base/checker.h"

namespace vramkit {

// From any thread, with the context current and in relaxed capture mode.
//
// cuMemFree waits for all work issued before it, by any thread and on any kind of stream, and
// leaves captures alone; cuCtxSynchronize breaks every capture of the context. That cuMemFree waits
// is measured and not documented: docs/decisions.md.
class DeviceSync {
  public:
    DeviceSync(const DriverTable& call, const Checker& checker) : call_(call), checker_(checker) {}
    DeviceSync(const DeviceSync&) = delete;
    DeviceSync& operator=(const DeviceSync&) = delete;

    // False: it did not wait, and work may still be running.
    bool wait();
    // Frees the pages that failed waits left behind.
    void give_back();
    // After a reset: the driver no longer knows the pages.
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
    std::vector<Page> left_;  // pages that the driver refused to free
};

}  // namespace vramkit
