// Where distributions, containers and WSL put NVIDIA's driver.
#pragma once

#include <array>

namespace vramkit {

inline constexpr std::array kUsualDriverPaths = {
#if defined(__x86_64__)
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
#elif defined(__aarch64__)
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
#endif
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.1",
};

}  // namespace vramkit
