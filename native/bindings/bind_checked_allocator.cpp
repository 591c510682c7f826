// Binds the allocator that CuPy is given: no Python code runs in it unless it fails.
#include <nanobind/nanobind.h>

#include <utility>

#include "bindings/bind.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// CuPy would use the null pointer of a failed C function as an address; this raises instead.
class CheckedAllocator {
  public:
    CheckedAllocator(nb::object allocate, nb::object failure)
        : allocate_(std::move(allocate)),
          failure_(std::move(failure)),
          ptr_(nb::steal(PyUnicode_InternFromString("ptr"))) {}

    nb::object operator()(nb::handle size) const {
        nb::object block = allocate_(size);
        const nb::object address = block.attr(ptr_);
        // A request for 0 bytes gets no address.
        if (is_zero(address) && !is_zero(size)) {
            const nb::object error = failure_();
            PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
            throw nb::python_error();
        }
        return block;
    }

    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(allocate_.ptr());
        Py_VISIT(failure_.ptr());
        return 0;
    }

  private:
    static bool is_zero(nb::handle number) {
        const int truth = PyObject_IsTrue(number.ptr());
        if (truth < 0) throw nb::python_error();
        return truth == 0;
    }

    nb::object allocate_;
    nb::object failure_;
    nb::object ptr_;
};

// No tp_clear: it refers only to objects that are older.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return nb::inst_ready(self) ? nb::inst_ptr<CheckedAllocator>(self)->traverse(visit, arg) : 0;
}

const PyType_Slot kSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
    {0, nullptr},
};

}  // namespace

void bind_checked_allocator(nb::module_& module) {
    nb::class_<CheckedAllocator>(
        module, "CheckedAllocator", nb::type_slots(kSlots),
        "Calls allocate(size); where its block has no ptr, raises what failure() returns.")
        .def(nb::init<nb::object, nb::object>(), nb::arg("allocate"), nb::arg("failure"),
             nb::sig("def __init__(self, allocate: object, failure: object) -> None"))
        .def("__call__", &CheckedAllocator::operator(), nb::arg("size"),
             nb::sig("def __call__(self, size: int) -> object"));
}

}  // namespace vramkit
