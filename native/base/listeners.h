// Who is told when a stream is about to be destroyed, and when a simulated GPU is reset: every
// allocator that keeps something for a stream.
#pragma once

#include <cstdint>

#include "driver/table.h"

namespace vramkit {

class Listener {
  public:
    Listener() = default;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    // Only what this driver does is told.
    virtual bool uses(const DriverTable& call) const = 0;
    // The stream still lives: the last moment to record an event on it.
    virtual void stream_closing(std::uint64_t id, CUstream handle) = 0;
    // The simulated GPU was reset: handles, events and memory of before mean nothing.
    virtual void driver_reset() = 0;

  protected:
    ~Listener() = default;
};

// Ids are never used again, so that what is remembered of one that is gone cannot mislead.
std::uint64_t next_listener_id();
void add_listener(std::uint64_t id, Listener& listener);
// Waits until nobody is telling it anything; after it nobody does. Unknown ids are ignored.
void remove_listener(std::uint64_t id);
bool is_listening(std::uint64_t id);

// Every listener of the driver, one after the other and without a lock held: one that waits for the
// GPU holds up nobody else.
void announce_stream_closing(const DriverTable& call, std::uint64_t id, CUstream handle);
void announce_reset(const DriverTable& call);

// A listener that is not removed while this lives; null where it has gone.
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
