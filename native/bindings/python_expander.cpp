// Calls a Python function in the middle of a copy.
#include "bindings/python_expander.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <utility>

#include "bindings/in_python.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// While Python exits it is not released: the process ends with it.
struct Release {
    void operator()(PyObject* function) const {
        in_python([&] { Py_DECREF(function); });
    }
};

}  // namespace

PythonExpander::PythonExpander(nb::callable function)
    : function_(function.release().ptr(), Release()) {}

bool PythonExpander::expand(const std::string& group, const weights::Chunk& chunk,
                            CUdeviceptr staged, CUdeviceptr place, CUstream stream, Failure& why) {
    bool done = false;
    in_python([&] {
        try {
            nb::borrow(function_.get())(group, chunk.first_byte, chunk.bytes, staged, chunk.stored,
                                        place, reinterpret_cast<std::uintptr_t>(stream));
            done = true;
        } catch (nb::python_error&) {
            if (raised_ == nullptr)
                raised_ = std::current_exception();  // the first one is the cause
        }
    });
    if (!done) why = Failure::closed("what expands the weights of group " + group);
    return done;
}

void PythonExpander::rethrow() {
    if (raised_ != nullptr) std::rethrow_exception(std::exchange(raised_, nullptr));
}

}  // namespace vramkit
