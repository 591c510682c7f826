// Copies and sets: alone, in chunks, in both directions, from memory that is not pinned.
#pragma once

#include <cstddef>

#include "fork.h"
#include "samples.h"

namespace bench::copies {

inline constexpr std::size_t kTotal = 256 * MiB;
inline constexpr std::size_t kPageable = 64 * MiB;

enum Direction { to_device, to_host };

inline char* offset(void* pointer, std::size_t bytes) {
    return static_cast<char*>(pointer) + bytes;
}

template <Direction direction, std::size_t chunk>
void pinned(Gpu& gpu, Samples& samples) {
    DeviceMemory device(gpu, kTotal);
    void* host = gpu.pinned(kTotal);
    Fork fork(gpu, 1);
    samples.repeat([&] {
        return fork.time([&] {
            for (std::size_t at = 0; at < kTotal; at += chunk) {
                if constexpr (direction == to_device) {
                    GPU_CALL(gpu, cuMemcpyHtoDAsync_v2, device + at, offset(host, at), chunk,
                             fork.stream(0));
                } else {
                    GPU_CALL(gpu, cuMemcpyDtoHAsync_v2, offset(host, at), device + at, chunk,
                             fork.stream(0));
                }
            }
        });
    });
}

inline void duplex(Gpu& gpu, Samples& samples) {
    DeviceMemory in(gpu, kTotal);
    DeviceMemory out(gpu, kTotal);
    void* host = gpu.pinned(2 * kTotal);
    Fork fork(gpu, 2);
    samples.repeat([&] {
        return fork.time([&] {
            GPU_CALL(gpu, cuMemcpyHtoDAsync_v2, in, host, kTotal, fork.stream(0));
            GPU_CALL(gpu, cuMemcpyDtoHAsync_v2, offset(host, kTotal), out, kTotal, fork.stream(1));
        });
    });
}

inline void two_streams(Gpu& gpu, Samples& samples) {
    constexpr std::size_t half = kTotal / 2;
    DeviceMemory device(gpu, kTotal);
    void* host = gpu.pinned(kTotal);
    Fork fork(gpu, 2);
    samples.repeat([&] {
        return fork.time([&] {
            GPU_CALL(gpu, cuMemcpyHtoDAsync_v2, device, host, half, fork.stream(0));
            GPU_CALL(gpu, cuMemcpyHtoDAsync_v2, device + half, offset(host, half), half,
                     fork.stream(1));
        });
    });
}

template <Direction direction>
void pageable(Gpu& gpu, Samples& samples) {
    DeviceMemory device(gpu, kPageable);
    HostPages host(kPageable);
    Stream stream(gpu);
    samples.repeat([&] {
        const double start = gpu.now();
        if constexpr (direction == to_device) {
            GPU_CALL(gpu, cuMemcpyHtoDAsync_v2, device, host.data(), kPageable, stream);
        } else {
            GPU_CALL(gpu, cuMemcpyDtoHAsync_v2, host.data(), device, kPageable, stream);
        }
        stream.synchronize();
        return (gpu.now() - start) / 1e3;
    });
}

inline void on_device(Gpu& gpu, Samples& samples) {
    DeviceMemory from(gpu, kTotal);
    DeviceMemory to(gpu, kTotal);
    Fork fork(gpu, 1);
    samples.repeat([&] {
        return fork.time(
            [&] { GPU_CALL(gpu, cuMemcpyDtoDAsync_v2, to, from, kTotal, fork.stream(0)); });
    });
}

inline void set(Gpu& gpu, Samples& samples) {
    DeviceMemory device(gpu, kTotal);
    Fork fork(gpu, 1);
    samples.repeat([&] {
        return fork.time(
            [&] { GPU_CALL(gpu, cuMemsetD8Async, device, 0x5a, kTotal, fork.stream(0)); });
    });
}

}  // namespace bench::copies
