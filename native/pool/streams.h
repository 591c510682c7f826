// From a raw handle to a stream as the pool knows it.
#pragma once

#include "pool/types.h"

namespace vramkit::pool {

// The id of the stream, or of the capture under way on it: two short calls, and none for the legacy
// default stream. An error of the driver says that it is no stream. A stream that is captured goes
// by its handle: the driver refuses to tell its id, and the question alone breaks the capture.
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

}  // namespace vramkit::pool
