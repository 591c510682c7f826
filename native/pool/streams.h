// From a raw handle to a stream as the pool knows it.
#pragma once

#include "pool/types.h"

namespace vramkit::pool {

// The id of the stream, and of the capture under way on it: two short calls. An error of the driver
// says that it is no stream.
inline CUresult identify(const DriverTable& call, StreamRef& stream) {
    unsigned long long id = 0;
    if (const CUresult result = call.cuStreamGetId(stream.handle, &id); result != CUDA_SUCCESS) {
        return result;
    }
    stream.id = id;
    stream.capture = 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    // The legacy stream answers with an error while others are captured: it is not.
    if (call.cuStreamIsCapturing(stream.handle, &status) != CUDA_SUCCESS ||
        status == CU_STREAM_CAPTURE_STATUS_NONE) {
        return CUDA_SUCCESS;
    }
    cuuint64_t capture = 0;
    const CUresult result =
        call.cuStreamGetCaptureInfo_v2(stream.handle, &status, &capture, nullptr, nullptr, nullptr);
    stream.capture = status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? capture : 0;
    return result;
}

}  // namespace vramkit::pool
