// Completion marks: events that say when the work before a spilled batch is done.
#pragma once

#include <memory>
#include <vector>

#include "driver/table.h"

namespace vramkit::pool {

// One event, recorded once and shared by the blocks of a batch. Passed stays passed.
class Mark {
  public:
    Mark(const DriverTable& call, CUevent event) : call_(call), event_(event) {}
    ~Mark() {
        if (event_ != nullptr) call_.cuEventDestroy_v2(event_);
    }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

    CUevent event() const { return event_; }
    // The driver no longer knows the event.
    void forget() { event_ = nullptr; }
    // Asks the driver until the answer is yes.
    bool passed() {
        passed_ = passed_ || call_.cuEventQuery(event_) == CUDA_SUCCESS;
        return passed_;
    }
    CUresult wait() {
        if (passed_) return CUDA_SUCCESS;
        const CUresult result = call_.cuEventSynchronize(event_);
        passed_ = result == CUDA_SUCCESS;
        return result;
    }

    // A mark behind all work of the stream so far; null where the driver refuses.
    static std::shared_ptr<Mark> record(const DriverTable& call, CUstream stream) {
        CUevent event = nullptr;
        if (call.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return nullptr;
        auto mark = std::make_shared<Mark>(call, event);
        return call.cuEventRecord(event, stream) == CUDA_SUCCESS ? mark : nullptr;
    }

  private:
    const DriverTable& call_;
    CUevent event_;
    bool passed_ = false;
};

}  // namespace vramkit::pool
