// What the Python bindings of everything written in C++ share: the device, the epoch that they
// belong to, and the conversion of arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/failure.h"
#include "base/resource.h"
#include "base/stream_ref.h"
#include "bindings/device.h"

namespace vramkit {

// A size from Python: an integer from 1 to 2^63 - 1. Raises TypeError for what is no integer, and
// ValueError, which says what was given, for the rest.
uint64_t positive(nanobind::handle number, const char* what);
// An address from Python; 0, which is never valid, for an integer out of range. Raises TypeError.
uint64_t pointer(nanobind::handle number);
// Raises the exception for a failure; `call` is the Python name of what failed.
[[noreturn]] void raise_failure(const Driver& driver, const Failure& why, const char* call);

// Something of the engine that belongs to a device and to an epoch of its driver.
class NativeObject {
  public:
    // `name` is what messages call it.
    NativeObject(std::shared_ptr<Device> device, const char* name);
    NativeObject(const NativeObject&) = delete;
    NativeObject& operator=(const NativeObject&) = delete;

    const std::shared_ptr<Device>& device() const { return device_; }
    // The simulated GPU was reset, and all that it held is gone; or this is a forked child, and it
    // is the parent's. There is nothing to free then.
    bool lost() const { return gone() || forked(); }
    // "<Pool on <Device ...>, closed>", with the class of the Python object.
    std::string describe(nanobind::handle self, bool closed) const;

  protected:
    ~NativeObject() = default;
    bool gone() const { return epoch_ != device_->session().epoch(); }
    bool forked() const { return device_->session().forked(); }
    // Raises ClosedError where it is lost.
    void require_present() const;
    // Our own streams know their id; for a foreign one the driver is asked. Raises.
    StreamRef stream(nanobind::handle object) const;
    // `method` is the Python method; none: the constructor.
    [[noreturn]] void fail(const Failure& why, const char* method = nullptr) const;

  private:
    std::shared_ptr<Device> device_;
    // Stored when this was made: a forked child cannot ask for it.
    std::string device_text_;
    const char* name_;
    uint64_t epoch_;
};

class NativeResource : public NativeObject {
  public:
    using NativeObject::NativeObject;
    virtual ~NativeResource() = default;

    // The engine behind it, as long as this object lives. Raises ClosedError where it is lost.
    virtual Resource& native() = 0;
    using NativeObject::fail;
    // Raise what the Python methods of these names raise. No stream: the legacy default stream, or
    // that of the allocation.
    virtual uint64_t malloc(uint64_t bytes, nanobind::handle stream) = 0;
    virtual void free(uint64_t address, std::optional<uint64_t> bytes, nanobind::handle stream) = 0;
};

}  // namespace vramkit
