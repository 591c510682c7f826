// The parameters of copies in three dimensions, understood.
#pragma once

#include "sim/api/copying.h"

namespace vramkit::sim {

// Not supported: arrays.
CUresult transfer_of(const CUDA_MEMCPY3D_PEER& given, Transfer& transfer);

}  // namespace vramkit::sim
