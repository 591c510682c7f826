#include "gate/capturing.h"

#include <atomic>

#include "gate/forwarding.h"

namespace vramkit::gate {
namespace {

std::atomic<bool> any_capture{false};

}  // namespace

void note_capture() { any_capture.store(true, std::memory_order_relaxed); }

bool is_capturing(const CallId& call, CUstream stream) {
    if (!any_capture.load(std::memory_order_relaxed)) return false;
    // The legacy default stream cannot be captured.
    if (call.stream(stream) == VRAMKIT_STREAM_LEGACY) return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto name =
        call.per_thread ? Export::cuStreamIsCapturing_ptsz : Export::cuStreamIsCapturing;
    const auto ask = real_as<CUresult(CUstream, CUstreamCaptureStatus*)>(name);
    return ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace vramkit::gate
