// Life of a device buffer: made, exported, freed.
#include "bindings/device_buffer.h"

#include <exception>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/event.h"
#include "bindings/invoke.h"
#include "bindings/stream.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// Later work of one stream waits for what another one holds now. The host does not wait.
CallResult wait_on_gpu(const std::shared_ptr<Device>& device, CUstream later, CUstream earlier) {
    const auto mark = create_event(device, false);
    const CallResult recorded = call_released(*device, device->call().cuEventRecord,
                                              "cuEventRecord", mark->handle(), earlier);
    if (recorded.result != CUDA_SUCCESS) return recorded;
    return call_released(*device, device->call().cuStreamWaitEvent, "cuStreamWaitEvent", later,
                         mark->handle(), 0U);
}

void report_unraisable(const std::exception& error, const char* where) noexcept {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    nb::python_error().discard_as_unraisable(where);
}

}  // namespace

DeviceBuffer::DeviceBuffer(nb::object resource, NativeResource* native, uint64_t address,
                           uint64_t nbytes, nb::object stream)
    : resource_(std::move(resource)),
      stream_(std::move(stream)),
      native_(native),
      address_(address),
      nbytes_(nbytes) {}

uint64_t DeviceBuffer::address() const {
    if (closed()) raise_closed("this Buffer is closed");
    return address_;
}

std::shared_ptr<Device> DeviceBuffer::device() const {
    if (native_ != nullptr) return native_->device();
    const nb::object given = resource_.attr("device");
    return Argument<std::shared_ptr<Device>>::from(given, "the device of the resource");
}

void DeviceBuffer::close(nb::handle stream) {
    if (closed()) return;
    if (lent_ != 0) {
        if (!stream.is_none()) stream_handle(stream);  // raises now, not when the export ends
        closing_stream_ = nb::borrow(stream);
        closing_ = true;
        return;
    }
    const uint64_t address = std::exchange(address_, 0);
    try {
        release(address, stream);
    } catch (...) {
        address_ = address;
        throw;
    }
}

void DeviceBuffer::drop() noexcept {
    // While Python exits nothing may wait for the GPU, and the process ends with its memory.
    if (address_ == 0 || ExitGate::closed()) return;
    const uint64_t address = std::exchange(address_, 0);
    const nb::error_scope kept;
    try {
        release(address, closing_stream_.is_valid() ? closing_stream_ : nb::none());
    } catch (nb::python_error& error) {
        error.discard_as_unraisable("a Buffer that was dropped");
    } catch (const std::exception& error) {
        report_unraisable(error, "a Buffer that was dropped");
    }
}

bool DeviceBuffer::lost() const {
    return native_ != nullptr
               ? native_->lost()
               : Argument<bool>::from(nb::object(resource_.attr("closed")), "closed");
}

void DeviceBuffer::release(uint64_t address, nb::handle stream) {
    if (lost()) return;
    if (native_ != nullptr) {
        native_->free(address, nbytes_, stream);
    } else {
        resource_.attr("deallocate")(address, nbytes_, nb::arg("stream") = stream);
    }
}

bool DeviceBuffer::own_handle(CUstream* handle) const {
    const bool given = closing_stream_.is_valid() && !closing_stream_.is_none();
    const nb::handle stream = given ? closing_stream_ : stream_;
    if (stream.is_none()) {
        *handle = VRAMKIT_STREAM_LEGACY;
        return true;
    }
    if (nb::isinstance<Stream>(stream) && !nb::inst_ptr<Stream>(stream)->usable()) return false;
    *handle = stream_handle(stream);
    return true;
}

void DeviceBuffer::lend_to(CUstream consumer) {
    const std::shared_ptr<Device> ours = device();
    CUstream handle = nullptr;
    if (!own_handle(&handle)) {
        // Its work may still run, and there is no stream left to record an event on.
        VRAMKIT_INVOKE(*ours, cuCtxSynchronize);
    } else if (handle != consumer) {
        const CallResult done = wait_on_gpu(ours, consumer, handle);
        check(ours->session().driver(), done.result, done.symbol);
    }
    lend();
}

// If a stream cannot be named (ours has ended, or the consumer's is the default stream of an
// unknown thread), the host waits for the whole card: slow, but always correct.
void DeviceBuffer::come_behind(CUstream consumer) {
    const std::shared_ptr<Device> ours = device();
    CUstream handle = nullptr;
    const bool done =
        own_handle(&handle) && consumer != VRAMKIT_STREAM_PER_THREAD &&
        (consumer == handle || wait_on_gpu(ours, handle, consumer).result == CUDA_SUCCESS);
    if (!done) VRAMKIT_INVOKE(*ours, cuCtxSynchronize);
}

void DeviceBuffer::take_back(std::optional<CUstream> consumer) noexcept {
    const nb::error_scope kept;
    try {
        if (consumer && !lost()) come_behind(*consumer);
    } catch (nb::python_error& error) {
        error.discard_as_unraisable("a Buffer whose consumer is done");
    } catch (const std::exception& error) {
        report_unraisable(error, "a Buffer whose consumer is done");
    }
    if (--lent_ == 0 && closing_) drop();
}

int DeviceBuffer::traverse(visitproc visit, void* arg) const {
    Py_VISIT(resource_.ptr());
    Py_VISIT(stream_.ptr());
    Py_VISIT(closing_stream_.ptr());
    return 0;
}

nb::object make_device_buffer(nb::handle resource, NativeResource& native, nb::handle size,
                              nb::handle stream) {
    static const nb::handle type = nb::type<DeviceBuffer>();
    // First the object, then the block: where either fails, nothing is left.
    nb::object made = nb::inst_alloc(type);
    const uint64_t nbytes = positive(size, "size");
    const uint64_t address = native.malloc(nbytes, stream);
    new (nb::inst_ptr<DeviceBuffer>(made))
        DeviceBuffer(nb::borrow(resource), &native, address, nbytes, nb::borrow(stream));
    nb::inst_mark_ready(made);
    return made;
}

}  // namespace vramkit
