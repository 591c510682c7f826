// The Python module vramkit._core. Importing it opens no driver.
#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "bindings/gil.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
    module.doc() = "Thin bindings of the driver layer; vramkit.driver is what programs use.";
    // A callable still queued at exit keeps what it refers to: not a leak worth a message.
    nb::set_leak_warnings(false);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&vramkit::ExitGate::close));

    vramkit::bind_driver(module);
    vramkit::bind_simulator(module);
    vramkit::bind_device(module);
    vramkit::bind_buffers(module);
    vramkit::bind_event(module);
    vramkit::bind_stream(module);
    vramkit::bind_memory(module);
    vramkit::bind_virtual_memory(module);
    vramkit::bind_copies(module);
    vramkit::bind_launch(module);
    vramkit::bind_device_buffer(module);
    vramkit::bind_pool(module);
    vramkit::bind_resources(module);
    vramkit::bind_checked_allocator(module);
    vramkit::bind_weights(module);
    vramkit::bind_packing(module);
    vramkit::bind_lab(module);
    vramkit::bind_sharing_cases(module);
}
