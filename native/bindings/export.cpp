// DLPack capsules, and the release of the memory in them.
#include "bindings/export.h"

#include <nanobind/stl/pair.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings/arguments.h"
#include "bindings/device_buffer.h"
#include "bindings/dlpack.h"
#include "bindings/gil.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// What a consumer gets, and the reference that keeps it alive.
template <typename Structure>
struct Export {
    Structure managed{};
    int64_t shape = 0;
    int64_t stride = 1;
    PyObject* owner = nullptr;
    std::optional<CUstream> consumer;  // none: it does its own ordering
};

// Consumers call this from any thread, with the GIL or without. When Python exits, the memory ends
// with the process.
template <typename Structure>
void end_export(Structure* managed) {
    const InsideGate gate;
    if (!gate.entered()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    {
        const std::unique_ptr<Export<Structure>> ended(
            static_cast<Export<Structure>*>(managed->context));
        nb::inst_ptr<DeviceBuffer>(ended->owner)->take_back(ended->consumer);
        Py_DECREF(ended->owner);
    }
    PyGILState_Release(state);
}

// The destructor of a capsule. A consumer renames it: only one that nobody consumed is released.
template <typename Structure>
void end_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, Structure::kName) == 0) return;
    auto* const managed = static_cast<Structure*>(PyCapsule_GetPointer(capsule, Structure::kName));
    managed->deleter(managed);
}

template <typename Structure>
nb::object capsule_of(nb::handle buffer, const dlpack::Device& device,
                      std::optional<CUstream> consumer) {
    const DeviceBuffer& ours = *nb::inst_ptr<DeviceBuffer>(buffer);
    auto made = std::make_unique<Export<Structure>>();
    made->shape = static_cast<int64_t>(ours.nbytes());
    made->managed.tensor = {reinterpret_cast<void*>(ours.address()),
                            device,
                            1,
                            {dlpack::kUnsigned, 8, 1},
                            &made->shape,
                            &made->stride,
                            0};
    made->managed.context = made.get();
    made->managed.deleter = &end_export<Structure>;
    if constexpr (requires { made->managed.major; }) made->managed.major = 1;
    made->owner = buffer.ptr();
    made->consumer = consumer;
    nb::object capsule =
        nb::steal(PyCapsule_New(&made->managed, Structure::kName, &end_capsule<Structure>));
    if (!capsule.is_valid()) throw nb::python_error();
    buffer.inc_ref();
    made.release();
    return capsule;
}

[[noreturn]] void refuse(const std::string& message) {
    PyErr_SetString(PyExc_BufferError, message.c_str());
    throw nb::python_error();
}

bool is_before_version_1(nb::handle max_version) {
    if (max_version.is_none()) return true;
    if (!nb::isinstance<nb::tuple>(max_version) || nb::len(max_version) != 2) {
        refuse_type(max_version, "max_version", "a tuple (major, minor) or None");
    }
    const nb::object major = nb::borrow<nb::tuple>(max_version)[0];
    return Argument<int64_t>::from(major, "the major number of max_version") < 1;
}

// The stream that a consumer passes as a number; none if it does its own ordering.
std::optional<CUstream> consumer_stream(nb::handle stream) {
    if (stream.is_none()) return VRAMKIT_STREAM_LEGACY;
    constexpr const char* allowed =
        "None or an integer: -1 (no order), 1 (legacy default stream), 2 (per-thread default "
        "stream) or a handle";
    const int64_t number = signed_argument(stream, "stream", -1, INT64_MAX, allowed);
    if (number == -1) return std::nullopt;
    if (number == 0) refuse_value(stream, "stream", allowed);
    return reinterpret_cast<CUstream>(number);
}

}  // namespace

std::pair<int, int> dlpack_device(nb::handle buffer) {
    return {dlpack::kCuda, nb::inst_ptr<DeviceBuffer>(buffer)->device()->ordinal()};
}

nb::object export_dlpack(nb::handle buffer, nb::handle stream, nb::handle max_version,
                         nb::handle dl_device, nb::handle copy) {
    DeviceBuffer& ours = *nb::inst_ptr<DeviceBuffer>(buffer);
    ours.address();  // raises if it is closed
    const std::optional<CUstream> consumer = consumer_stream(stream);
    const bool old = is_before_version_1(max_version);
    const std::pair<int, int> device = dlpack_device(buffer);
    if (!dl_device.is_none() && !dl_device.equal(nb::cast(device))) {
        refuse("dl_device is " + std::string(nb::repr(dl_device).c_str()) +
               "; a Buffer is exported where it is: (" + std::to_string(device.first) + ", " +
               std::to_string(device.second) + ")");
    }
    if (!copy.is_none() && bool_argument(copy, "copy")) {
        refuse("copy is True; a Buffer exports its own memory: copy it after that");
    }
    if (consumer) {
        ours.lend_to(*consumer);
    } else {
        ours.lend();
    }
    try {
        const dlpack::Device where{device.first, device.second};
        return old ? capsule_of<dlpack::Managed>(buffer, where, consumer)
                   : capsule_of<dlpack::ManagedVersioned>(buffer, where, consumer);
    } catch (...) {
        ours.take_back(std::nullopt);
        throw;
    }
}

}  // namespace vramkit
