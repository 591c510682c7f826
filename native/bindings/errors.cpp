// Raises the exceptions that vramkit.driver.errors defines.
#include "bindings/errors.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace vramkit {
namespace {

struct ErrorClasses {
    nb::object driver_error;
    nb::object out_of_memory;
    nb::object closed;
};

// Looked up on the first error, not on import: the Python module that defines them imports this
// one. Never destroyed: an error may still be raised while the interpreter shuts down. The GIL is
// the lock here; that of a C++ static could deadlock with it, since an import may release the GIL.
const ErrorClasses& error_classes() {
    static constinit const ErrorClasses* classes = nullptr;
    if (classes == nullptr) {
        const nb::module_ module = nb::module_::import_("vramkit.driver.errors");
        classes = new ErrorClasses{module.attr("DriverError"), module.attr("OutOfMemoryError"),
                                   module.attr("ClosedError")};
    }
    return *classes;
}

[[noreturn]] void raise(const nb::object& exception_class, const nb::object& exception) {
    PyErr_SetObject(exception_class.ptr(), exception.ptr());
    throw nb::python_error();
}

// A driver newer than our list knows its own codes best.
nb::str name_of(const Driver& driver, CUresult result) {
    const std::string name = error_name(result);
    const char* text = nullptr;
    const bool unknown = name == "CUDA_ERROR_" + std::to_string(static_cast<int>(result));
    if (unknown && driver.call().cuGetErrorName(result, &text) == CUDA_SUCCESS && text != nullptr) {
        return nb::str(text);
    }
    return nb::str(name.c_str(), name.size());
}

}  // namespace

void check(const Driver& driver, CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) [[likely]] {
        return;
    }
    const ErrorClasses& classes = error_classes();
    const nb::object& exception_class =
        result == CUDA_ERROR_OUT_OF_MEMORY ? classes.out_of_memory : classes.driver_error;
    const std::string_view meaning = error_meaning(result);
    raise(exception_class,
          exception_class(nb::str(call), static_cast<int>(result), name_of(driver, result),
                          nb::str(meaning.data(), meaning.size())));
}

void raise_out_of_memory(const char* call, const std::string& message) {
    const nb::object& exception_class = error_classes().out_of_memory;
    raise(exception_class,
          exception_class(nb::str(call), static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY),
                          nb::str("CUDA_ERROR_OUT_OF_MEMORY"),
                          nb::str(message.c_str(), message.size())));
}

void raise_closed(const std::string& message) {
    const nb::object& closed = error_classes().closed;
    raise(closed, closed(nb::str(message.c_str(), message.size())));
}

}  // namespace vramkit
