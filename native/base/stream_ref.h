// A stream as vramkit knows it: by the driver's id, not by its handle alone.
#pragma once

#include <cstdint>

#include "driver/table.h"

namespace vramkit {

// The driver reuses handles, but never ids. A capture on a stream counts as a stream of its own:
// its work runs when the graph is launched.
struct StreamRef {
    CUstream handle = nullptr;
    std::uint64_t id = 0;
    // The stream is never destroyed, or we are told before: its handle may be used at any time.
    bool durable = false;
    std::uint64_t capture = 0;  // id of the capture under way on it; 0: none

    bool is(const StreamRef& other) const { return id == other.id && capture == other.capture; }
};

// The legacy default stream of a context is never destroyed, cannot be captured, and is known by
// its handle alone: during a capture on a blocking stream the driver does not return its id. Its id
// here is one that no stream of the driver has.
inline constexpr std::uint64_t kLegacyStreamId = ~std::uint64_t{0};

inline bool is_legacy(CUstream handle) {
    return handle == nullptr || handle == VRAMKIT_STREAM_LEGACY;
}
inline StreamRef legacy_stream() { return {VRAMKIT_STREAM_LEGACY, kLegacyStreamId, true}; }

// Whether an event recorded on the stream would become part of a graph.
inline bool is_captured(const DriverTable& call, CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return call.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// From a raw handle to the stream: its id, or that of its active capture. Two short calls, none for
// the legacy default stream. A driver error means that the handle is no stream. A captured stream
// is known by its handle: asking the driver for its id fails, and breaks the capture.
inline CUresult identify(const DriverTable& call, StreamRef& stream) {
    if (is_legacy(stream.handle)) {
        stream = legacy_stream();
        return CUDA_SUCCESS;
    }
    stream.capture = 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult asked = call.cuStreamIsCapturing(stream.handle, &status);
    if (asked != CUDA_SUCCESS) return asked;
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
        unsigned long long id = 0;
        const CUresult result = call.cuStreamGetId(stream.handle, &id);
        stream.id = id;
        return result;
    }
    cuuint64_t capture = 0;
    const CUresult result =
        call.cuStreamGetCaptureInfo_v2(stream.handle, &status, &capture, nullptr, nullptr, nullptr);
    if (result != CUDA_SUCCESS) return result;
    stream.id = reinterpret_cast<std::uintptr_t>(stream.handle);
    stream.capture = capture;
    return CUDA_SUCCESS;
}

}  // namespace vramkit
