// Unused events, to be recorded again.
#pragma once

#include <mutex>
#include <vector>

#include "base/host_memory.h"
#include "driver/table.h"

namespace vramkit {

// Creating an event costs more than recording it. From any thread.
class EventPool {
  public:
    explicit EventPool(const DriverTable& call) : call_(call) {}
    ~EventPool() { drop(); }
    EventPool(const EventPool&) = delete;
    EventPool& operator=(const EventPool&) = delete;

    const DriverTable& call() const { return call_; }
    // Null if the driver fails.
    CUevent take() {
        const std::lock_guard guard(lock_);
        CUevent event = nullptr;
        if (!spare_.empty()) {
            event = spare_.back();
            spare_.pop_back();
        } else if (call_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
            return nullptr;
        }
        return event;
    }
    void give(CUevent event) noexcept {
        const std::lock_guard guard(lock_);
        if (!if_host_memory_allows([&] { spare_.push_back(event); }))
            call_.cuEventDestroy_v2(event);
    }
    // Destroys the unused events. One that the driver refuses to destroy stays in the pool.
    void drop() {
        const std::lock_guard guard(lock_);
        std::erase_if(spare_, [this](CUevent event) {
            return call_.cuEventDestroy_v2(event) == CUDA_SUCCESS;
        });
    }
    // After a reset: the driver no longer knows them.
    void forget() {
        const std::lock_guard guard(lock_);
        spare_.clear();
    }

  private:
    const DriverTable& call_;
    std::mutex lock_;
    std::vector<CUevent> spare_;
};

}  // namespace vramkit
