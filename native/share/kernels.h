// The PTX text of the kernels that hash memory, part of this library.
#pragma once

extern "C" __attribute__((visibility("hidden"))) const char vramkit_share_kernels[];

namespace vramkit::share {

inline const char* kernels_text() { return vramkit_share_kernels; }

}  // namespace vramkit::share
