// The driver's entry points as a table of function pointers, one member a manifest row, named by
// symbol.
#pragma once

#include "driver/cuda_abi.h"

namespace vramkit {

struct DriverTable {
#define VRAMKIT_FIELD_required(symbol, params) CUresult(*symbol) params = nullptr;
#define VRAMKIT_FIELD_optional(symbol, params) CUresult(*symbol) params = nullptr;
#define VRAMKIT_FIELD_answered(symbol, params)
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) VRAMKIT_FIELD_##need(symbol, params)
#include "driver/manifest.def"
#undef VRAMKIT_CALL
#undef VRAMKIT_FIELD_required
#undef VRAMKIT_FIELD_optional
#undef VRAMKIT_FIELD_answered
};

}  // namespace vramkit
