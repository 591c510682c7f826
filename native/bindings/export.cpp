// Capsules of DLPack, and the end of the memory in them.
#include "bindings/export.h"

#include <nanobind/stl/pair.h>

#include <memory>
#include <string>

#include "bindings/device_buffer.h"
#include "bindings/dlpack.h"
#include "bindings/gil.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// What a consumer gets, and the reference that it holds.
template <typename Structure>
struct Export {
    Structure managed{};
    int64_t shape = 0;
    int64_t stride = 1;
    PyObject* owner = nullptr;
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
        const nb::error_scope kept;
        nb::inst_ptr<DeviceBuffer>(ended->owner)->take_back();
        Py_DECREF(ended->owner);
    }
    PyGILState_Release(state);
}

// Of a capsule that nobody consumed: a consumer renames it.
template <typename Structure>
void end_capsule(PyObject* capsule) {
    if (PyCapsule_IsValid(capsule, Structure::kName) == 0) return;
    auto* const managed = static_cast<Structure*>(PyCapsule_GetPointer(capsule, Structure::kName));
    managed->deleter(managed);
}

template <typename Structure>
nb::object capsule_of(nb::handle buffer, const dlpack::Device& device) {
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
        throw nb::type_error("max_version is a tuple (major, minor) or None");
    }
    return nb::cast<int64_t>(nb::borrow<nb::tuple>(max_version)[0]) < 1;
}

// The stream that a consumer names by its number. -1, which no stream has: it orders itself.
constexpr int64_t kOrdersItself = -1;

int64_t consumer_stream(nb::handle stream) {
    if (stream.is_none()) return 1;
    if (!nb::isinstance<nb::int_>(stream)) {
        throw nb::type_error(
            "stream is None or a number: -1 (no order), 1 (legacy default stream), 2 (per-thread "
            "default stream) or a handle");
    }
    const auto number = nb::cast<int64_t>(stream);
    if (number == 0 || number < kOrdersItself) {
        const std::string text = "stream is " + std::to_string(number) +
                                 "; it may be None, -1 (no order), 1 (legacy default stream), 2 "
                                 "(per-thread default stream) or a handle";
        throw nb::value_error(text.c_str());
    }
    return number;
}

}  // namespace

std::pair<int, int> dlpack_device(nb::handle buffer) {
    return {dlpack::kCuda, nb::inst_ptr<DeviceBuffer>(buffer)->device()->ordinal()};
}

nb::object export_dlpack(nb::handle buffer, nb::handle stream, nb::handle max_version,
                         nb::handle dl_device, nb::handle copy) {
    DeviceBuffer& ours = *nb::inst_ptr<DeviceBuffer>(buffer);
    ours.address();  // raises where it is closed
    const int64_t consumer = consumer_stream(stream);
    const bool old = is_before_version_1(max_version);
    const std::pair<int, int> device = dlpack_device(buffer);
    if (!dl_device.is_none() && !dl_device.equal(nb::cast(device))) {
        refuse("dl_device is " + std::string(nb::repr(dl_device).c_str()) +
               "; a Buffer is exported where it is: (" + std::to_string(device.first) + ", " +
               std::to_string(device.second) + ")");
    }
    if (!copy.is_none() && nb::cast<bool>(copy)) {
        refuse("copy is True; a Buffer exports its own memory: copy it after that");
    }
    if (consumer == kOrdersItself) {
        ours.lend();
    } else {
        ours.lend_to(reinterpret_cast<CUstream>(consumer));
    }
    try {
        const dlpack::Device where{device.first, device.second};
        return old ? capsule_of<dlpack::Managed>(buffer, where)
                   : capsule_of<dlpack::ManagedVersioned>(buffer, where);
    } catch (...) {
        ours.take_back();
        throw;
    }
}

}  // namespace vramkit
