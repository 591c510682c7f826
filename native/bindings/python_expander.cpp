// Calls Python in the middle of a copy.
#include "bindings/python_expander.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <utility>

#include "bindings/in_python.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// While Python exits it is not released: the process ends with it.
struct Release {
    void operator()(PyObject* object) const {
        in_python([&] { Py_DECREF(object); });
    }
};

}  // namespace

PythonExpander::PythonExpander(nb::object object) : object_(object.release().ptr(), Release()) {}

template <typename Call>
bool PythonExpander::calls(const Call& call) {
    bool done = false;
    in_python([&] {
        try {
            call(nb::borrow(object_.get()));
            done = true;
        } catch (nb::python_error&) {
            if (raised_ == nullptr) raised_ = std::current_exception();  // the first is the cause
        }
    });
    return done;
}

bool PythonExpander::expand(const std::string& group, const weights::Chunk& chunk,
                            CUdeviceptr staged, CUdeviceptr place, CUstream stream, Failure& why) {
    const bool done = calls([&](const nb::object& object) {
        object.attr("expand")(group, chunk.first_byte, chunk.bytes, staged, chunk.stored, place,
                              reinterpret_cast<std::uintptr_t>(stream));
    });
    if (!done) why = Failure::closed("what expands the weights of group " + group);
    return done;
}

void PythonExpander::give_up(const std::string& group, const Failure& why) {
    const std::string text = why.call.empty()
                                 ? why.message
                                 : std::string(why.call) + " returned " + std::to_string(why.code);
    calls([&](const nb::object& object) { object.attr("give_up")(group, text); });
}

void PythonExpander::rethrow() {
    if (raised_ != nullptr) std::rethrow_exception(std::exchange(raised_, nullptr));
}

}  // namespace vramkit
