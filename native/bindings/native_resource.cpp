// Arguments, streams and errors of native objects.
#include "bindings/native_resource.h"

#include <nanobind/stl/shared_ptr.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "base/sizes.h"
#include "bindings/arguments.h"
#include "bindings/errors.h"
#include "bindings/stream.h"

namespace nb = nanobind;

namespace vramkit {

void raise_failure(const Driver& driver, const Failure& why, const char* call) {
    switch (why.kind) {
        case Failure::Kind::bad_value:
            throw nb::value_error(why.message.c_str());
        case Failure::Kind::closed:
        case Failure::Kind::forked:
            raise_closed(why.message);
        case Failure::Kind::out_of_memory:
            if (why.message.empty()) check(driver, why.code, why.call.data());
            raise_out_of_memory(call, why.message);
        case Failure::Kind::driver:
            check(driver, why.code, why.call.data());
            break;
        default:
            break;
    }
    throw std::runtime_error(why.message.empty() ? std::string(call) + " failed" : why.message);
}

uint64_t positive(nb::handle number, const char* what) {
    static const std::string allowed = "an integer from 1 to " + std::to_string(kLargestRequest);
    return unsigned_argument(number, what, 1, INT64_MAX, allowed.c_str());
}

uint64_t pointer(nb::handle number) {
    if (!PyIndex_Check(number.ptr())) refuse_type(number, "address", "an integer");
    const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
    if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return 0;
    }
    return value;
}

NativeObject::NativeObject(std::shared_ptr<Device> device, const char* name)
    : device_(std::move(device)),
      device_text_(nb::repr(nb::cast(device_)).c_str()),
      name_(name),
      epoch_(device_->session().epoch()) {}

void NativeObject::fail(const Failure& why, const char* method) const {
    const std::string call = method == nullptr ? name_ : std::string(name_) + "." + method;
    raise_failure(device_->session().driver(), why, call.c_str());
}

std::string NativeObject::describe(nb::handle self, bool closed) const {
    const nb::object type = self.type().attr("__name__");
    return std::string("<") + nb::str(type).c_str() + " on " + device_text_ +
           (closed ? ", closed>" : ">");
}

void NativeObject::require_present() const {
    if (gone()) {
        raise_closed("this " + std::string(name_) +
                     " is gone: the simulated GPU was reset after it was made");
    }
    if (forked()) {
        raise_closed("this " + std::string(name_) +
                     " belongs to the parent process: a forked child cannot use it");
    }
}

StreamRef NativeObject::stream(nb::handle object) const {
    if (object.is_none()) return legacy_stream();
    StreamRef result;
    if (nb::isinstance<Stream>(object)) {
        const Stream& stream = *nb::inst_ptr<Stream>(object);
        stream.require_usable();
        if (stream.device().get() != device_.get()) {
            const std::string text =
                "the stream is of another device than the " + std::string(name_);
            throw nb::value_error(text.c_str());
        }
        if (is_legacy(stream.handle())) return legacy_stream();
        // If nobody else knows its handle, it cannot be captured.
        if (stream.owned() && !stream.exported()) return {stream.handle(), stream.id(), true};
        result = {stream.handle(), 0, stream.owned()};
    } else {
        result.handle = stream_handle(object);
    }
    // It may be captured. One of another library may have ended, and its handle may mean another
    // stream by now.
    const ContextScope scope(*device_);
    const CUresult known = identify(device_->call(), result);
    const bool gone = known == CUDA_ERROR_INVALID_CONTEXT || known == CUDA_ERROR_INVALID_HANDLE;
    check(device_->session().driver(), known,
          gone ? "there is no such stream, or no longer: cuStreamGetId" : "cuStreamGetId");
    return result;
}

}  // namespace vramkit
