// Order on the card: chains of events, kernels back to back, host functions, and the wait that
// cuMemFree does of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fork.h"
#include "samples.h"

namespace bench::order {

inline constexpr int kLinks = 100;
inline constexpr std::uint64_t kTinyNs = 2'000;
// Longer than the host takes to enqueue any of these chains.
inline constexpr std::uint64_t kAheadNs = 3'000'000;

// Queued ahead: all of it is enqueued while the card is kept busy, so that only the card's own time
// counts.
template <bool queued_ahead>
void chain(Gpu& gpu, Samples& samples) {
    Fork fork(gpu, 2);
    std::vector<Event> events;
    for (int i = 0; i < kLinks; ++i) events.emplace_back(gpu, CU_EVENT_DISABLE_TIMING);
    const auto enqueue = [&] {
        for (std::size_t i = 0; i < events.size(); ++i) {
            gpu.spin(kTinyNs, 1, 32, fork.stream(i % 2));
            events[i].record(fork.stream(i % 2));
            GPU_CALL(gpu, cuStreamWaitEvent, fork.stream((i + 1) % 2), events[i], 0);
        }
    };
    samples.repeat([&] { return fork.time(enqueue, queued_ahead ? kAheadNs : 0); });
}

template <bool queued_ahead>
void kernels(Gpu& gpu, Samples& samples) {
    Fork fork(gpu, 1);
    const auto enqueue = [&] {
        for (int i = 0; i < kLinks; ++i) gpu.spin(kTinyNs, 1, 32, fork.stream(0));
    };
    samples.repeat([&] { return fork.time(enqueue, queued_ahead ? kAheadNs : 0); });
}

inline void host_function(Gpu& gpu, Samples& samples) {
    Fork fork(gpu, 1);
    samples.repeat([&] {
        return fork.time(
            [&] { GPU_CALL(gpu, cuLaunchHostFunc, fork.stream(0), [](void*) {}, nullptr); });
    });
}

inline void free_beside_kernel(Gpu& gpu, Samples& samples) {
    constexpr std::size_t bytes = 64 * MiB;
    Stream stream(gpu);
    samples.repeat([&] {
        CUdeviceptr block = 0;
        GPU_CALL(gpu, cuMemAlloc_v2, &block, bytes);
        gpu.spin(20'000'000, 1, 32, stream);
        gpu.pass(200'000);
        const double start = gpu.now();
        GPU_CALL(gpu, cuMemFree_v2, block);
        const double time = gpu.now() - start;
        stream.synchronize();
        return time / 1e3;
    });
}

}  // namespace bench::order
