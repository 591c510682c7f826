// A device address from Python: an integer, or whatever has an `address`.
#pragma once

#include <nanobind/nanobind.h>

#include "driver/cuda_abi.h"

namespace vramkit {

inline CUdeviceptr address_of(nanobind::handle object) {
    if (nanobind::isinstance<nanobind::int_>(object)) {
        return nanobind::cast<CUdeviceptr>(object);
    }
    if (nanobind::hasattr(object, "address")) {
        return nanobind::cast<CUdeviceptr>(object.attr("address"));
    }
    throw nanobind::type_error("an address is an integer or an object with an address");
}

}  // namespace vramkit
