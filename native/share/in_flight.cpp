#include "share/in_flight.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace vramkit::share {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 100ms;  // what is in flight is at most twice as long, and one launch
constexpr auto kShort = 10ms;
constexpr std::uint32_t kMostLaunches = 1024;  // as many as a card's queue has anyway

}  // namespace

std::uint32_t InFlight::look(const DriverTable& call, CUstream stream, std::uint32_t launches) {
    // Questions about events break a capture under way anywhere, in the usual mode.
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool relaxed = call.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    launches = look_relaxed(call, stream, launches);
    if (relaxed) call.cuThreadExchangeStreamCaptureMode(&mode);
    return launches;
}

std::uint32_t InFlight::look_relaxed(const DriverTable& call, CUstream stream,
                                     std::uint32_t launches) {
    Mark& now = marks_[turn_++ % marks_.size()];
    Mark& before = marks_[turn_ % marks_.size()];
    now.recorded = record(call, now, stream);
    // That of another context may have ended with it.
    const bool known = std::exchange(before.recorded, false) && before.context == now.context;
    if (!known) return launches;
    if (call.cuEventQuery(before.event) == CUDA_SUCCESS) {
        return std::min(launches * 2, kMostLaunches);
    }
    ++waits_;
    const auto begin = std::chrono::steady_clock::now();
    call.cuEventSynchronize(before.event);
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited > kLong) return std::max(launches / 2, 1U);
    return waited < kShort ? std::min(launches * 2, kMostLaunches) : launches;
}

// The event belongs to the context that it was made in, and may have ended with it.
bool InFlight::record(const DriverTable& call, Mark& mark, CUstream stream) {
    unsigned long long context = 0;
    if (call.cuCtxGetId(nullptr, &context) != CUDA_SUCCESS) return false;
    if (mark.context != context) {
        constexpr unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC;
        if (call.cuEventCreate(&mark.event, flags) != CUDA_SUCCESS) return false;
        mark.context = context;
    }
    return call.cuEventRecord(mark.event, stream) == CUDA_SUCCESS;
}

}  // namespace vramkit::share
