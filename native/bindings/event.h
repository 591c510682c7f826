// A CUDA event as a Python object.
#pragma once

#include <cstdint>
#include <memory>

#include "bindings/device.h"

namespace vramkit {

// Made and destroyed with the GIL held.
class Event {
  public:
    Event(std::shared_ptr<Device> device, CUevent handle);
    // Destroys the event; errors are dropped.
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    CUevent handle() const { return handle_; }
    const std::shared_ptr<Device>& device() const { return device_; }

    // False after close(), after a reset of the simulated GPU, and in a forked child.
    bool usable() const {
        const Session& session = device_->session();
        return open_ && epoch_ == session.epoch() && !session.forked();
    }
    // Raises ClosedError unless usable.
    void require_usable() const;
    // Raises DriverError.
    void close();

  private:
    std::shared_ptr<Device> device_;
    CUevent handle_;
    uint64_t epoch_;
    bool open_ = true;
};

std::unique_ptr<Event> create_event(std::shared_ptr<Device> device, bool timing);

}  // namespace vramkit
