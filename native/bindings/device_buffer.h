// Device memory as a Python object that frees itself.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "bindings/native_resource.h"

namespace vramkit {

// A block of a resource; keeps the resource and the stream alive. Freed on close() or when dropped:
// by the engine itself if the resource is a native one, else by the deallocate() of the Python
// object. Used with the GIL held.
//
// Consumers of an export may hold the block longer than this object is referenced: each keeps it
// alive, and close() takes effect when the last one is done. A consumer's stream waits for ours
// when it begins, and ours for the consumer's when it is done.
class DeviceBuffer {
  public:
    // `native` is the engine of `resource`, or null.
    DeviceBuffer(nanobind::object resource, NativeResource* native, uint64_t address,
                 uint64_t nbytes, nanobind::object stream);
    ~DeviceBuffer() { drop(); }
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;

    // Raises ClosedError.
    uint64_t address() const;
    uint64_t nbytes() const { return nbytes_; }
    const nanobind::object& resource() const { return resource_; }
    const nanobind::object& stream() const { return stream_; }
    bool closed() const { return address_ == 0 || closing_; }
    std::shared_ptr<Device> device() const;

    // Raises what the resource raises, and stays open then. Twice is harmless.
    void close(nanobind::handle stream);
    // close() for a destructor: an error goes to sys.unraisablehook.
    void drop() noexcept;

    // A consumer begins: its stream waits for what ours holds now. Raises.
    void lend_to(CUstream consumer);
    // A consumer begins that does its own ordering.
    void lend() { ++lent_; }
    // A consumer is done; no stream if it did its own ordering.
    void take_back(std::optional<CUstream> consumer) noexcept;

    // For Python's garbage collector.
    int traverse(visitproc visit, void* argument) const;

  private:
    void release(uint64_t address, nanobind::handle stream);
    // There is nothing to free and nothing to wait for.
    bool lost() const;
    // The stream on which the block will be freed. False if it has ended: it has no handle then.
    bool own_handle(CUstream* handle) const;
    void come_behind(CUstream consumer);

    nanobind::object resource_;
    nanobind::object stream_;
    NativeResource* native_;
    uint64_t address_;
    uint64_t nbytes_;
    nanobind::object closing_stream_;
    uint32_t lent_ = 0;
    bool closing_ = false;
};

nanobind::object make_device_buffer(nanobind::handle resource, NativeResource& native,
                                    nanobind::handle size, nanobind::handle stream);

}  // namespace vramkit
