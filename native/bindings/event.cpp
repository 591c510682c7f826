// Life of an event.
#include "bindings/event.h"

#include <nanobind/nanobind.h>

#include <utility>

#include "bindings/errors.h"
#include "bindings/invoke.h"

namespace vramkit {

Event::Event(std::shared_ptr<Device> device, CUevent handle)
    : device_(std::move(device)), handle_(handle), epoch_(device_->session().epoch()) {}

Event::~Event() {
    if (usable()) {
        call_released(*device_, device_->call().cuEventDestroy_v2, "cuEventDestroy_v2", handle_);
    }
}

void Event::require_usable() const {
    if (usable()) [[likely]]
        return;
    if (!open_) raise_closed("this Event is closed");
    device_->session().require_own_process("this Event");
    raise_closed("this Event is gone: the simulated GPU was reset after it was made");
}

void Event::close() {
    const bool destroy = usable();
    open_ = false;
    if (destroy) VRAMKIT_INVOKE(*device_, cuEventDestroy_v2, handle_);
}

std::unique_ptr<Event> create_event(std::shared_ptr<Device> device, bool timing) {
    CUevent handle = nullptr;
    const unsigned int flags = timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
    VRAMKIT_INVOKE(*device, cuEventCreate, &handle, flags);
    return std::make_unique<Event>(std::move(device), handle);
}

}  // namespace vramkit
