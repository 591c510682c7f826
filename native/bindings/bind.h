// The parts of the module _core, one function for each file bind_*.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace vramkit {

void bind_driver(nanobind::module_& module);
void bind_simulator(nanobind::module_& module);
void bind_device(nanobind::module_& module);
void bind_buffers(nanobind::module_& module);
void bind_event(nanobind::module_& module);
void bind_stream(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_virtual_memory(nanobind::module_& module);
void bind_copies(nanobind::module_& module);
void bind_launch(nanobind::module_& module);
void bind_device_buffer(nanobind::module_& module);
void bind_pool(nanobind::module_& module);
void bind_resources(nanobind::module_& module);
void bind_checked_allocator(nanobind::module_& module);
void bind_weights(nanobind::module_& module);
void bind_packing(nanobind::module_& module);
void bind_lab(nanobind::module_& module);
void bind_sharing_cases(nanobind::module_& module);

}  // namespace vramkit
