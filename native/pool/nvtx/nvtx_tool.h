// The tool that watches the program through NVTX, if there is one: compute-sanitizer, a profiler.
#pragma once

#include "pool/nvtx/nvtx_abi.h"

namespace vramkit::pool::nvtx {

// The functions of its memory extension that the pool calls; none is null.
struct Tool {
    Domain domain;
    HeapRegister heap_register;
    HeapUnregister heap_unregister;
    RegionsRegister regions_register;
    RegionsUnregister regions_unregister;
};

// The tool that the environment names, loaded once and never unloaded. Null: it names none, or one
// without the memory extension.
const Tool* tool();

}  // namespace vramkit::pool::nvtx
