// Kernels: how long one runs, what runs beside what, and what a higher priority gains.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fork.h"
#include "samples.h"

namespace bench::kernels {

inline constexpr std::uint64_t kMicrosecond = 1000;
inline constexpr std::size_t kSwept = 256 * MiB;
inline constexpr std::size_t kAddend = 64 * MiB;

inline void spin(Gpu& gpu, Samples& samples) {
    Fork fork(gpu, 1);
    samples.repeat(
        [&] { return fork.time([&] { gpu.spin(1000 * kMicrosecond, 1, 32, fork.stream(0)); }); });
}

inline void beside_copy(Gpu& gpu, Samples& samples) {
    constexpr std::size_t bytes = 64 * MiB;
    DeviceMemory device(gpu, bytes);
    void* host = gpu.pinned(bytes);
    Fork fork(gpu, 2);
    samples.repeat([&] {
        return fork.time([&] {
            gpu.spin(2000 * kMicrosecond, 1, 32, fork.stream(0));
            GPU_CALL(gpu, cuMemcpyHtoDAsync_v2, device, host, bytes, fork.stream(1));
        });
    });
}

inline void four_small(Gpu& gpu, Samples& samples) {
    constexpr std::size_t count = 4;
    Fork fork(gpu, count);
    samples.repeat([&] {
        return fork.time([&] {
            for (std::size_t i = 0; i < count; ++i) {
                gpu.spin(500 * kMicrosecond, 16, 128, fork.stream(i));
            }
        });
    });
}

inline void two_whole_card(Gpu& gpu, Samples& samples) {
    Fork fork(gpu, 2);
    samples.repeat([&] {
        return fork.time([&] {
            gpu.spin(500 * kMicrosecond, gpu.multiprocessors() * 2, 1024, fork.stream(0));
            gpu.spin(500 * kMicrosecond, gpu.multiprocessors() * 2, 1024, fork.stream(1));
        });
    });
}

inline void sweep(Gpu& gpu, Samples& samples) {
    DeviceMemory data(gpu, kSwept);
    Fork fork(gpu, 1);
    samples.repeat(
        [&] { return fork.time([&] { gpu.sweep(data, kSwept / 4, 1, fork.stream(0)); }); });
}

inline void fill(Gpu& gpu, Samples& samples) {
    DeviceMemory data(gpu, kSwept);
    Fork fork(gpu, 1);
    samples.repeat(
        [&] { return fork.time([&] { gpu.fill(data, kSwept / 4, 7, fork.stream(0)); }); });
}

inline void add(Gpu& gpu, Samples& samples) {
    DeviceMemory sum(gpu, kAddend);
    DeviceMemory left(gpu, kAddend);
    DeviceMemory right(gpu, kAddend);
    Fork fork(gpu, 1);
    samples.repeat(
        [&] { return fork.time([&] { gpu.add(sum, left, right, kAddend / 4, fork.stream(0)); }); });
}

// Blocks of the long kernel end every 150 us, so a launch 200 us after its start falls between two
// ends whatever the launch latency is.
inline void priority(Gpu& gpu, Samples& samples) {
    constexpr unsigned waves = 20;
    int least = 0;
    int greatest = 0;
    GPU_CALL(gpu, cuCtxGetStreamPriorityRange, &least, &greatest);
    Stream low(gpu, least);
    Stream high(gpu, greatest);
    Event start(gpu);
    Event end(gpu);
    samples.repeat([&] {
        gpu.spin(150 * kMicrosecond, gpu.multiprocessors() * 2 * waves, 1024, low);
        gpu.pass(200 * kMicrosecond);
        start.record(high);
        gpu.spin(50 * kMicrosecond, 16, 128, high);
        end.record(high);
        end.synchronize();
        const double time = end.microseconds_since(start);
        low.synchronize();
        return time;
    });
}

}  // namespace bench::kernels
