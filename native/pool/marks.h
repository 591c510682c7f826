// Completion marks: events that say when the work before a spilled batch is done.
#pragma once

#include <memory>
#include <vector>

#include "driver/table.h"

namespace vramkit::pool {

// Events that no mark uses now. To make one costs more than to record it. With the pool's lock.
class Events {
  public:
    explicit Events(const DriverTable& call) : call_(call) {}
    ~Events() { drop(); }
    Events(const Events&) = delete;
    Events& operator=(const Events&) = delete;

    const DriverTable& call() const { return call_; }
    // Null where the driver refuses.
    CUevent take() {
        CUevent event = nullptr;
        if (!spare_.empty()) {
            event = spare_.back();
            spare_.pop_back();
        } else if (call_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
            return nullptr;
        }
        return event;
    }
    void give(CUevent event) { spare_.push_back(event); }
    void drop() {
        for (const CUevent event : spare_) call_.cuEventDestroy_v2(event);
        spare_.clear();
    }
    // The driver no longer knows them.
    void forget() { spare_.clear(); }

  private:
    const DriverTable& call_;
    std::vector<CUevent> spare_;
};

// One event, recorded once and shared by the blocks of a batch. Passed stays passed. Without an
// event, where none was to be had, it passes when somebody waits for it: then for the whole card.
class Mark {
  public:
    Mark(Events& events, CUevent event) : events_(events), event_(event) {}
    ~Mark() {
        if (event_ != nullptr) events_.give(event_);
    }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

    CUevent event() const { return event_; }
    // The driver no longer knows the event.
    void forget() { event_ = nullptr; }
    // Whether it is known to have passed, without asking.
    bool known() const { return passed_; }
    // Asks the driver until the answer is yes. Never waits.
    bool passed() {
        passed_ =
            passed_ || (event_ != nullptr && events_.call().cuEventQuery(event_) == CUDA_SUCCESS);
        return passed_;
    }
    bool wait() {
        if (passed_) return true;
        const DriverTable& call = events_.call();
        const CUresult result =
            event_ != nullptr ? call.cuEventSynchronize(event_) : call.cuCtxSynchronize();
        return passed_ = result == CUDA_SUCCESS;
    }

    // A mark behind all work of the stream so far; one without an event where the driver refuses.
    static std::shared_ptr<Mark> record(Events& events, CUstream stream) {
        CUevent event = events.take();
        if (event != nullptr && events.call().cuEventRecord(event, stream) != CUDA_SUCCESS) {
            events.give(event);
            event = nullptr;
        }
        return std::make_shared<Mark>(events, event);
    }

  private:
    Events& events_;
    CUevent event_;
    bool passed_ = false;
};

}  // namespace vramkit::pool
