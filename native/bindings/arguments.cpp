// Checks of single arguments.
#include "bindings/arguments.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

constexpr std::size_t kLongestText = 80;

// What was given, as an error says it: its repr, or its class where that is long or fails.
std::string shown(nb::handle given) {
    PyObject* const text = PyObject_Repr(given.ptr());
    if (text == nullptr) {
        PyErr_Clear();
    } else if (const std::string repr = nb::steal<nb::str>(text).c_str();
               repr.size() <= kLongestText) {
        return repr;
    }
    return "of type " + std::string(nb::type_name(given.type()).c_str());
}

std::string sentence(nb::handle given, const char* name, const std::string& allowed) {
    return std::string(name) + " is " + shown(given) + "; it may be " + allowed;
}

// The int behind anything that has __index__; not valid for what has none. An error of __index__
// itself is passed on.
nb::object integer(nb::handle given) {
    if (PyLong_CheckExact(given.ptr())) return nb::borrow(given);
    if (!PyIndex_Check(given.ptr())) return {};
    nb::object index = nb::steal(PyNumber_Index(given.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    return index;
}

template <typename T>
std::string in_words(const char* allowed, T least, T most) {
    if (allowed != nullptr) return allowed;
    return "an integer from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

void refuse_type(nb::handle given, const char* name, const std::string& allowed) {
    throw nb::type_error(sentence(given, name, allowed).c_str());
}

void refuse_value(nb::handle given, const char* name, const std::string& allowed) {
    throw nb::value_error(sentence(given, name, allowed).c_str());
}

int64_t signed_argument(nb::handle given, const char* name, int64_t least, int64_t most,
                        const char* allowed) {
    const nb::object index = integer(given);
    if (!index.is_valid()) refuse_type(given, name, in_words(allowed, least, most));
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || value < least || value > most) {
        refuse_value(index, name, in_words(allowed, least, most));
    }
    return value;
}

uint64_t unsigned_argument(nb::handle given, const char* name, uint64_t least, uint64_t most,
                           const char* allowed) {
    const nb::object index = integer(given);
    if (!index.is_valid()) refuse_type(given, name, in_words(allowed, least, most));
    const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
    const bool failed = value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr;
    if (failed) PyErr_Clear();  // negative, or too large
    if (failed || value < least || value > most) {
        refuse_value(index, name, in_words(allowed, least, most));
    }
    return value;
}

double number_argument(nb::handle given, const char* name) {
    const double value = PyFloat_AsDouble(given.ptr());
    if (value == -1.0 && PyErr_Occurred() != nullptr) {
        const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
        PyErr_Clear();
        if (too_large) refuse_value(given, name, "a number that a float can hold");
        refuse_type(given, name, "a number");
    }
    return value;
}

bool bool_argument(nb::handle given, const char* name) {
    if (!PyBool_Check(given.ptr())) refuse_type(given, name, "True or False");
    return given.is(nb::handle(Py_True));
}

std::string text_argument(nb::handle given, const char* name) {
    if (!nb::isinstance<nb::str>(given)) refuse_type(given, name, "a str");
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(given.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    return {text, static_cast<std::size_t>(size)};
}

nb::callable callable_argument(nb::handle given, const char* name) {
    if (PyCallable_Check(given.ptr()) == 0) refuse_type(given, name, "a callable");
    return nb::borrow<nb::callable>(given);
}

nb::bytes bytes_argument(nb::handle given, const char* name) {
    if (!nb::isinstance<nb::bytes>(given)) refuse_type(given, name, "bytes");
    return nb::borrow<nb::bytes>(given);
}

void refuse_instance(nb::handle given, const char* name, nb::handle type) {
    const std::string kind = nb::str(type.attr("__name__")).c_str();
    const bool vowel = std::string("AEIOU").find(kind.front()) != std::string::npos;
    refuse_type(given, name, (vowel ? "an " : "a ") + kind);
}

}  // namespace vramkit
