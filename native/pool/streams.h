// From a raw handle to a stream as the pool knows it.
#pragma once

#include "pool/types.h"

namespace vramkit::pool {

// The id of the stream, or of the capture under way on it: two short calls. An error of the driver
// says that it is no stream. A stream that is captured goes by its handle: the driver refuses to
// tell its id, and the question alone breaks the capture.
inline CUresult identify(const DriverTable& call, StreamRef& stream) {
    stream.capture = 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    // The legacy stream answers with an error while others are captured: it is not.
    const CUresult asked = call.cuStreamIsCapturing(stream.handle, &status);
    if (asked != CUDA_SUCCESS && asked != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return asked;
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (asked != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE) {
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
