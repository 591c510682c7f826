// Life of a stream, and the handle behind a foreign one.
#include "bindings/stream.h"

#include <string>
#include <utility>

#include "base/listeners.h"
#include "bindings/errors.h"
#include "bindings/invoke.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

[[noreturn]] void refuse_answer(nb::handle object, nb::handle answer) {
    std::string message = nb::type_name(object.type()).c_str();
    message += ".__cuda_stream__() must return (version, handle), the handle an integer of 0 or ";
    message += "more that fits 64 bits, not ";
    message += nb::repr(answer).c_str();
    throw nb::type_error(message.c_str());
}

}  // namespace

Stream::Stream(std::shared_ptr<Device> device, CUstream handle, uint64_t id, Ownership ownership)
    : device_(std::move(device)),
      handle_(handle),
      id_(id),
      epoch_(device_->session().epoch()),
      ownership_(ownership) {}

Stream::~Stream() {
    if (usable() && ownership_ == Ownership::owned) {
        announce_end();
        call_released(*device_, device_->call().cuStreamDestroy_v2, "cuStreamDestroy_v2", handle_);
    }
}

void Stream::require_usable() const {
    if (usable()) [[likely]]
        return;
    if (!open_) raise_closed("this Stream is closed");
    device_->session().require_own_process("this Stream");
    raise_closed("this Stream is gone: the simulated GPU was reset after it was made");
}

void Stream::close() {
    const bool destroy = usable() && ownership_ == Ownership::owned;
    open_ = false;
    if (!destroy) return;
    announce_end();
    VRAMKIT_INVOKE(*device_, cuStreamDestroy_v2, handle_);
}

void Stream::announce_end() {
    const GilReleased released;
    announce_stream_closing(device_->call(), id_, handle_);
}

CUstream stream_handle(nb::handle object) {
    if (nb::isinstance<Stream>(object)) {
        const auto& stream = nb::cast<const Stream&>(object);
        stream.require_usable();
        return stream.handle();
    }
    const bool is_class = PyType_Check(object.ptr());
    if (is_class || !nb::hasattr(object, "__cuda_stream__")) {
        std::string message =
            "a stream is a vramkit Stream or an object with __cuda_stream__, not ";
        message += is_class ? nb::repr(object).c_str() : nb::type_name(object.type()).c_str();
        if (nb::isinstance<nb::int_>(object)) {
            message += "; Stream.from_handle(device, handle) takes a raw handle";
        }
        throw nb::type_error(message.c_str());
    }
    const nb::object answer = object.attr("__cuda_stream__")();
    if (!nb::isinstance<nb::tuple>(answer) || nb::len(answer) != 2) refuse_answer(object, answer);
    int64_t version = 0;
    if (!nb::isinstance<nb::int_>(answer[0]) || !nb::try_cast(nb::object(answer[0]), version) ||
        version != 0) {
        throw nb::value_error("only version 0 of the __cuda_stream__ protocol is known");
    }
    // Objects of other libraries that stand for a handle convert as well; text would too.
    const nb::object handle = answer[1];
    uintptr_t number = 0;
    if (nb::isinstance<nb::str>(handle) || nb::isinstance<nb::bytes>(handle) ||
        !nb::try_cast(handle, number)) {
        refuse_answer(object, answer);
    }
    return reinterpret_cast<CUstream>(number);
}

}  // namespace vramkit
