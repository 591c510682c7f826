// A device address from Python: an integer, or whatever has an `address`.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/arguments.h"
#include "driver/cuda_abi.h"

namespace vramkit {

inline CUdeviceptr address_of(nanobind::handle object) {
    if (PyIndex_Check(object.ptr())) return Argument<CUdeviceptr>::from(object, "address");
    if (!nanobind::isinstance<nanobind::type_object>(object) &&
        nanobind::hasattr(object, "address")) {
        return Argument<CUdeviceptr>::from(nanobind::object(object.attr("address")), "address");
    }
    refuse_type(object, "address", "an integer or an object with an address");
}

}  // namespace vramkit
