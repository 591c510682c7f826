// Exported calls: copies in two and three dimensions, and sets in two.
#include "sim/api/copy_3d.h"

#include "sim/api/limits.h"

namespace vramkit::sim {
namespace {

// One side of a copy as its parameters name it. What has no third dimension has zeros there.
struct Named {
    CUmemorytype type = CU_MEMORYTYPE_DEVICE;
    const void* host = nullptr;
    CUdeviceptr device = 0;
    std::uint64_t x = 0;
    std::uint64_t y = 0;
    std::uint64_t z = 0;
    std::uint64_t pitch = 0;
    std::uint64_t height = 0;
};

template <class Parameters>
Named source_of(const Parameters& given) {
    return {given.srcMemoryType, given.srcHost, given.srcDevice, given.srcXInBytes, given.srcY, 0,
            given.srcPitch};
}

template <class Parameters>
Named destination_of(const Parameters& given) {
    return {given.dstMemoryType, given.dstHost, given.dstDevice, given.dstXInBytes, given.dstY, 0,
            given.dstPitch};
}

bool counts_past(std::uint64_t count, std::uint64_t bytes) {
    return bytes != 0 && count > Space::kMostAddresses / bytes;
}

// Where the copy begins on one side, and how its rows lie there. A pitch or height of zero is not
// specified: the box is packed.
CUresult find_side(const Named& given, const Box& box, Side& side) {
    switch (given.type) {
        case CU_MEMORYTYPE_HOST:
            side = {address(given.host), {}, true};
            break;
        case CU_MEMORYTYPE_DEVICE:
            side = {given.device, {}, false};
            break;
        case CU_MEMORYTYPE_UNIFIED:
            side = {given.device, {}, true};
            break;
        case CU_MEMORYTYPE_ARRAY:
            return CUDA_ERROR_NOT_SUPPORTED;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (box.width > Space::kMostAddresses || given.x > Space::kMostAddresses ||
        box.height > Space::kMostAddresses || given.y > Space::kMostAddresses) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t pitch = given.pitch != 0 ? given.pitch : box.width + given.x;
    const std::uint64_t height = given.height != 0 ? given.height : box.height + given.y;
    const bool needs_height = box.depth > 1 && given.height == 0;
    if (side.address == 0 || given.pitch > kMostPitch || pitch < box.width + given.x ||
        height < box.height + given.y || needs_height || counts_past(height, pitch) ||
        counts_past(given.z, pitch * given.height)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    side.strides = {pitch, pitch * height};
    side.address += (given.z * given.height + given.y) * pitch + given.x;
    return CUDA_SUCCESS;
}

CUresult find_sides(const Named& destination, const Named& source, Transfer& transfer) {
    if (transfer.box.empty()) return CUDA_SUCCESS;
    const CUresult to = find_side(destination, transfer.box, transfer.to);
    return to != CUDA_SUCCESS ? to : find_side(source, transfer.box, transfer.from);
}

template <class Parameters>
CUresult transfer_of_3d(const Parameters& given, Transfer& transfer) {
    transfer.box = {given.WidthInBytes, given.Height, given.Depth};
    Named source = source_of(given);
    source.z = given.srcZ;
    source.height = given.srcHeight;
    Named destination = destination_of(given);
    destination.z = given.dstZ;
    destination.height = given.dstHeight;
    return find_sides(destination, source, transfer);
}

CUresult transfer_of(const CUDA_MEMCPY2D& given, Transfer& transfer) {
    transfer.box = {given.WidthInBytes, given.Height};
    return find_sides(destination_of(given), source_of(given), transfer);
}

CUresult transfer_of(const CUDA_MEMCPY3D& given, Transfer& transfer) {
    if (given.reserved0 != nullptr || given.reserved1 != nullptr) return CUDA_ERROR_INVALID_VALUE;
    return transfer_of_3d(given, transfer);
}

template <class Parameters>
CUresult copy_as_given(Call& call, const Parameters* given, CUstream stream, bool synchronous) {
    Transfer transfer;
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult understood = transfer_of(*given, transfer);
    return understood != CUDA_SUCCESS ? understood : copy(call, transfer, stream, synchronous);
}

CUresult set_rows(Call& call, CUdeviceptr to, size_t pitch, std::uint64_t value, unsigned width,
                  size_t count, size_t height, CUstream stream, bool synchronous) {
    if (counts_past(count, width) || pitch > kMostPitch) return CUDA_ERROR_INVALID_VALUE;
    return set(call, to, Box{count * width, height}, {.row = pitch}, value, width, stream,
               synchronous);
}

}  // namespace

CUresult transfer_of(const CUDA_MEMCPY3D_PEER& given, Transfer& transfer) {
    return transfer_of_3d(given, transfer);
}

}  // namespace vramkit::sim

using namespace vramkit::sim;

#define SIM_COPY(symbol, params, stream, needs)                                    \
    SIM_EXPORT CUresult symbol params {                                            \
        return run(CallId::symbol, SIM_RETURN_ADDRESS, needs, 0, [&](Call& call) { \
            return copy_as_given(call, given, stream, needs == Needs::context);    \
        });                                                                        \
    }

SIM_COPY(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* given), nullptr, Needs::context)
SIM_COPY(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* given), nullptr, Needs::context)
SIM_COPY(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* given, CUstream stream), stream, Needs::stream)
SIM_COPY(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* given), nullptr, Needs::context)
SIM_COPY(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* given, CUstream stream), stream, Needs::stream)

#define SIM_SET(symbol, params, bytes, stream, needs)                              \
    SIM_EXPORT CUresult symbol params {                                            \
        return run(CallId::symbol, SIM_RETURN_ADDRESS, needs, 0, [&](Call& call) { \
            return set_rows(call, to, pitch, value, bytes, width, height, stream,  \
                            needs == Needs::context);                              \
        });                                                                        \
    }

SIM_SET(cuMemsetD2D8_v2,
        (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height), 1,
        nullptr, Needs::context)
SIM_SET(cuMemsetD2D16_v2,
        (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height), 2,
        nullptr, Needs::context)
SIM_SET(cuMemsetD2D32_v2,
        (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height), 4, nullptr,
        Needs::context)
SIM_SET(cuMemsetD2D8Async,
        (CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
         CUstream stream),
        1, stream, Needs::stream)
SIM_SET(cuMemsetD2D16Async,
        (CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
         CUstream stream),
        2, stream, Needs::stream)
SIM_SET(cuMemsetD2D32Async,
        (CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
         CUstream stream),
        4, stream, Needs::stream)

SIM_PER_THREAD(cuMemcpy2D_v2, ptds, (const CUDA_MEMCPY2D* c), (c))
SIM_PER_THREAD(cuMemcpy2DUnaligned_v2, ptds, (const CUDA_MEMCPY2D* c), (c))
SIM_PER_THREAD(cuMemcpy2DAsync_v2, ptsz, (const CUDA_MEMCPY2D* c, CUstream s), (c, s))
SIM_PER_THREAD(cuMemcpy3D_v2, ptds, (const CUDA_MEMCPY3D* c), (c))
SIM_PER_THREAD(cuMemcpy3DAsync_v2, ptsz, (const CUDA_MEMCPY3D* c, CUstream s), (c, s))
SIM_PER_THREAD(cuMemsetD2D8_v2, ptds,
               (CUdeviceptr d, size_t p, unsigned char v, size_t w, size_t h), (d, p, v, w, h))
SIM_PER_THREAD(cuMemsetD2D16_v2, ptds,
               (CUdeviceptr d, size_t p, unsigned short v, size_t w, size_t h), (d, p, v, w, h))
SIM_PER_THREAD(cuMemsetD2D32_v2, ptds,
               (CUdeviceptr d, size_t p, unsigned int v, size_t w, size_t h), (d, p, v, w, h))
SIM_PER_THREAD(cuMemsetD2D8Async, ptsz,
               (CUdeviceptr d, size_t p, unsigned char v, size_t w, size_t h, CUstream s),
               (d, p, v, w, h, s))
SIM_PER_THREAD(cuMemsetD2D16Async, ptsz,
               (CUdeviceptr d, size_t p, unsigned short v, size_t w, size_t h, CUstream s),
               (d, p, v, w, h, s))
SIM_PER_THREAD(cuMemsetD2D32Async, ptsz,
               (CUdeviceptr d, size_t p, unsigned int v, size_t w, size_t h, CUstream s),
               (d, p, v, w, h, s))
