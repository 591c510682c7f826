// Exports a device buffer to other libraries by DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace vramkit {

// The method __dlpack__ of a DeviceBuffer: a capsule with its bytes, for a consumer on the given
// stream, as the array API standard has it. Raises.
nanobind::object export_dlpack(nanobind::handle buffer, nanobind::handle stream,
                               nanobind::handle max_version, nanobind::handle dl_device,
                               nanobind::handle copy);
// (type, number) of the device, as DLPack counts them.
std::pair<int, int> dlpack_device(nanobind::handle buffer);

}  // namespace vramkit
