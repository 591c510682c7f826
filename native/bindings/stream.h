// A CUDA stream as a Python object: its handle, its id, and the device it lives on.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "bindings/device.h"

namespace vramkit {

// Made and destroyed with the GIL held. The two accessors are all that a hot path needs; handles
// are reused by the driver after a stream is destroyed, ids never.
class Stream {
  public:
    enum class Ownership { owned, borrowed };

    Stream(std::shared_ptr<Device> device, CUstream handle, uint64_t id, Ownership ownership);
    // Destroys an owned stream; errors are dropped.
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    CUstream handle() const { return handle_; }
    uint64_t id() const { return id_; }
    const std::shared_ptr<Device>& device() const { return device_; }
    // Pools are told before an owned stream is destroyed.
    bool owned() const { return ownership_ == Ownership::owned; }
    // The handle was given to a caller, who may capture the stream: from now on it must be asked.
    void set_exported() const { exported_.store(true, std::memory_order_relaxed); }
    bool exported() const { return exported_.load(std::memory_order_relaxed); }
    // The per-thread default stream is a different stream, with a different id, on every thread.
    bool per_thread() const { return handle_ == VRAMKIT_STREAM_PER_THREAD; }

    // False after close(), after a reset of the simulated GPU, and in a forked child.
    bool usable() const {
        const Session& session = device_->session();
        return open_ && epoch_ == session.epoch() && !session.forked();
    }
    // Raises ClosedError unless usable.
    void require_usable() const;
    // Destroys an owned stream; work left in it still completes. Raises DriverError.
    void close();

  private:
    // Pools and resources that have blocks of this stream record an event behind them while it
    // still lives.
    void announce_end();

    std::shared_ptr<Device> device_;
    CUstream handle_;
    uint64_t id_;
    uint64_t epoch_;
    Ownership ownership_;
    bool open_ = true;
    mutable std::atomic<bool> exported_{false};
};

// The handle behind a Stream or behind any object that has __cuda_stream__. Raises TypeError or
// ValueError for anything else; a bare integer is refused, since it could be any number.
CUstream stream_handle(nanobind::handle object);

}  // namespace vramkit
