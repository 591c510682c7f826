// Allocators that keep state for streams are told when a stream is about to be destroyed, and when
// a simulated GPU is reset.
#pragma once

#include <cstdint>

#include "driver/table.h"

namespace vramkit {

class Listener {
  public:
    Listener() = default;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    // Only events of this driver are announced to it.
    virtual bool uses(const DriverTable& call) const = 0;
    // The stream still lives: the last moment to record an event on it.
    virtual void stream_closing(std::uint64_t id, CUstream handle) = 0;
    // The simulated GPU was reset: all earlier handles, events and memory are invalid.
    virtual void driver_reset() = 0;

  protected:
    ~Listener() = default;
};

// Ids are never reused, so that a remembered id of a listener that is gone matches no other.
std::uint64_t next_listener_id();
void add_listener(std::uint64_t id, Listener& listener);
// Waits until no announcement to it is running; none starts afterwards. Unknown ids are ignored.
void remove_listener(std::uint64_t id);
bool is_listening(std::uint64_t id);

// Calls every listener of the driver, one after the other and with no lock held: one that waits for
// the GPU blocks no other thread.
void announce_stream_closing(const DriverTable& call, std::uint64_t id, CUstream handle);
void announce_reset(const DriverTable& call);

// A listener that is not removed while this object lives; null if it is gone already.
class PinnedListener {
  public:
    explicit PinnedListener(std::uint64_t id);
    ~PinnedListener();
    PinnedListener(const PinnedListener&) = delete;
    PinnedListener& operator=(const PinnedListener&) = delete;

    Listener* get() const { return listener_; }

  private:
    const std::uint64_t id_;
    Listener* listener_ = nullptr;
};

}  // namespace vramkit
