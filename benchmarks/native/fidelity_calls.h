// What single calls cost the host, in short batches so that no queue fills up.
#pragma once

#include <cstddef>

#include "objects.h"
#include "samples.h"

namespace bench::calls {

inline constexpr int kBatches = 16;
inline constexpr int kCalls = 32;
inline constexpr std::size_t kSmall = 4 * KiB;

// Mean microseconds of one call; `before` and `after` run around each batch, outside the clock.
template <class Before, class Call, class After>
double mean_cost(Gpu& gpu, Before&& before, Call&& call, After&& after) {
    double time = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
        before();
        const double start = gpu.now();
        for (int i = 0; i < kCalls; ++i) call();
        time += gpu.now() - start;
        after();
    }
    return time / (kBatches * kCalls) / 1e3;
}

// The same for a call that puts work on one stream, which is idle at the start of each batch.
template <class Call>
inline void repeat_on_idle_stream(Gpu& gpu, Samples& samples, Call&& call) {
    Stream stream(gpu);
    samples.repeat([&] {
        return mean_cost(gpu, [] {}, [&] { call(stream); }, [&] { stream.synchronize(); });
    });
}

inline void event_record(Gpu& gpu, Samples& samples) {
    Event event(gpu);
    repeat_on_idle_stream(gpu, samples, [&](CUstream stream) { event.record(stream); });
}

template <bool pending>
void event_query(Gpu& gpu, Samples& samples) {
    Stream stream(gpu);
    Event event(gpu);
    const CUresult expected = pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    samples.repeat([&] {
        return mean_cost(
            gpu,
            [&] {
                // Long enough to outlast a batch of queries.
                if (pending) gpu.spin(1'000'000, 1, 32, stream);
                event.record(stream);
                if (!pending) stream.synchronize();
            },
            [&] {
                const CUresult answer = gpu.call().cuEventQuery(event);
                if (answer == expected) return;
                gpu.check(answer, "cuEventQuery");
                throw Failure("cuEventQuery said that an event behind a running kernel has passed");
            },
            [&] { stream.synchronize(); });
    });
}

inline void stream_wait(Gpu& gpu, Samples& samples) {
    Stream recording(gpu);
    Stream waiting(gpu);
    Event event(gpu, CU_EVENT_DISABLE_TIMING);
    samples.repeat([&] {
        return mean_cost(
            gpu,
            [&] {
                gpu.spin(1'000'000, 1, 32, recording);
                event.record(recording);
            },
            [&] { GPU_CALL(gpu, cuStreamWaitEvent, waiting, event, 0); },
            [&] { waiting.synchronize(); });
    });
}

inline void launch(Gpu& gpu, Samples& samples) {
    repeat_on_idle_stream(gpu, samples, [&](CUstream stream) { gpu.spin(0, 1, 32, stream); });
}

inline void copy(Gpu& gpu, Samples& samples) {
    DeviceMemory device(gpu, kSmall);
    void* host = gpu.pinned(kSmall);
    repeat_on_idle_stream(gpu, samples, [&](CUstream stream) {
        GPU_CALL(gpu, cuMemcpyHtoDAsync_v2, device, host, kSmall, stream);
    });
}

inline void set(Gpu& gpu, Samples& samples) {
    DeviceMemory device(gpu, kSmall);
    repeat_on_idle_stream(gpu, samples, [&](CUstream stream) {
        GPU_CALL(gpu, cuMemsetD8Async, device, 0, kSmall, stream);
    });
}

inline void synchronize(Gpu& gpu, Samples& samples) {
    repeat_on_idle_stream(gpu, samples,
                          [&](CUstream stream) { GPU_CALL(gpu, cuStreamSynchronize, stream); });
}

}  // namespace bench::calls
