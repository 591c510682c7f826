// Calls a Python function in the middle of a malloc.
#include "bindings/shortage_callback.h"

#include <cstdint>
#include <memory>

#include "bindings/in_python.h"
#include "bindings/native_resource.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// While Python exits it is not released: the process ends with it.
struct Release {
    void operator()(PyObject* function) const {
        in_python([&] { Py_DECREF(function); });
    }
};

std::uint64_t ask(PyObject* function, std::uint64_t bytes) {
    std::uint64_t freed = 0;
    in_python([&] {
        const auto callable = nb::borrow(function);
        try {
            const nb::object result = callable(bytes);
            if (!nb::try_cast(result, freed)) {
                const nb::str text(
                    "a callback of on_shortage() returned {!r}; it must return how "
                    "many bytes it freed, 0 or more");
                PyErr_SetObject(PyExc_TypeError, nb::str(text.attr("format")(result)).ptr());
                throw nb::python_error();
            }
        } catch (nb::python_error& error) {
            error.discard_as_unraisable(callable);
        }
    });
    return freed;
}

}  // namespace

pool::Shortage::Callback shortage_callback(nb::callable function) {
    const std::shared_ptr<PyObject> kept(function.release().ptr(), Release());
    return [kept](std::uint64_t bytes) { return ask(kept.get(), bytes); };
}

}  // namespace vramkit
