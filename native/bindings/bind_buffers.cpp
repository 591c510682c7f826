// Binds the two directions of the buffer protocol.
#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "bindings/buffer.h"

namespace nb = nanobind;

namespace vramkit {

Buffer::Buffer(nb::handle object, bool writable) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
}

Buffer::~Buffer() { release(); }

void Buffer::release() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    auto* const range = nb::inst_ptr<HostRange>(self);
    const int failed = PyBuffer_FillInfo(view, self, range->address(), range->size(),
                                         range->writable() ? 0 : 1, flags);
    if (failed == 0) range->view_taken();
    return failed;
}

void release_buffer(PyObject* self, Py_buffer*) { nb::inst_ptr<HostRange>(self)->view_released(); }

nb::object view(nb::handle self) {
    PyObject* const made = PyMemoryView_FromObject(self.ptr());
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
}

const PyType_Slot kHostRangeSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_buffer)},
    {0, nullptr},
};

}  // namespace

void bind_buffers(nb::module_& module) {
    nb::class_<Buffer>(module, "Buffer", "The memory of a buffer object, held while this lives.")
        .def(nb::init<nb::handle, bool>(), nb::arg("object").none(), nb::arg("writable"),
             nb::sig("def __init__(self, object: object, writable: bool) -> None"))
        .def_prop_ro("address", &Buffer::address)
        .def_prop_ro("nbytes", &Buffer::size)
        .def("release", &Buffer::release, "Let go of the memory early.");
    nb::class_<HostRange>(module, "HostRange", nb::type_slots(kHostRangeSlots),
                          "Host memory to look into; counts the views.")
        .def(nb::init<uint64_t, size_t, bool>(), nb::arg("address"), nb::arg("nbytes"),
             nb::arg("writable") = true)
        .def("view", &view, nb::sig("def view(self) -> memoryview"), "The whole of it.")
        .def_prop_ro("views", &HostRange::views, "How many views are held.");
}

}  // namespace vramkit
