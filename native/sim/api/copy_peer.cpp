// Exported calls: copies between contexts, and access of one card to another's memory, which no
// simulated card has. Copies between cards work all the same, over the link.
#include "sim/api/copy_3d.h"

using namespace vramkit::sim;

namespace {

bool is_context(Call& call, CUcontext context) {
    return context != nullptr && call.machine().find(context) != nullptr;
}

// The null context stands for the current one, as on a real card.
CUresult copy_between(Call& call, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes, CUstream stream, bool synchronous) {
    const auto known = [&](CUcontext context) {
        return context == nullptr || is_context(call, context);
    };
    if (!known(to_context) || !known(from_context)) return CUDA_ERROR_INVALID_CONTEXT;
    std::shared_ptr<Stream> found;
    const CUresult result = call.find(stream, found, Purpose::ask);
    if (result != CUDA_SUCCESS) return result;
    // As a real card answers, whose capture goes on.
    if (found->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const Transfer transfer{
        .box = {.width = bytes}, .to = {to, {}, false}, .from = {from, {}, false}};
    return copy(call, transfer, stream, synchronous);
}

// Memory of the host has no context.
CUresult copy_between(Call& call, const CUDA_MEMCPY3D_PEER* given, CUstream stream,
                      bool synchronous) {
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto known = [&](CUmemorytype type, CUcontext context) {
        return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_ARRAY ||
               is_context(call, context);
    };
    if (!known(given->srcMemoryType, given->srcContext) ||
        !known(given->dstMemoryType, given->dstContext)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    Transfer transfer;
    const CUresult understood = transfer_of(*given, transfer);
    return understood != CUDA_SUCCESS ? understood : copy(call, transfer, stream, synchronous);
}

}  // namespace

SIM_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                 CUcontext from_context, size_t bytes) {
    return run(CallId::cuMemcpyPeer, SIM_RETURN_ADDRESS, Needs::context, bytes, [&](Call& call) {
        return copy_between(call, to, to_context, from, from_context, bytes, nullptr, true);
    });
}

SIM_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                      CUcontext from_context, size_t bytes, CUstream stream) {
    return run(
        CallId::cuMemcpyPeerAsync, SIM_RETURN_ADDRESS, Needs::stream, bytes, [&](Call& call) {
            return copy_between(call, to, to_context, from, from_context, bytes, stream, false);
        });
}

SIM_EXPORT CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* given) {
    return run(CallId::cuMemcpy3DPeer, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) { return copy_between(call, given, nullptr, true); });
}

SIM_EXPORT CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* given, CUstream stream) {
    return run(CallId::cuMemcpy3DPeerAsync, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return copy_between(call, given, stream, false); });
}

SIM_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    return run(CallId::cuCtxEnablePeerAccess, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) {
                   if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
                   if (!is_context(call, peer)) return CUDA_ERROR_INVALID_CONTEXT;
                   // As cuDeviceCanAccessPeer says.
                   return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
               });
}

SIM_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return run(CallId::cuCtxDisablePeerAccess, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) {
                   return is_context(call, peer) ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
                                                 : CUDA_ERROR_INVALID_CONTEXT;
               });
}

SIM_EXPORT CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                            CUdevice source, CUdevice destination) {
    return run(CallId::cuDeviceGetP2PAttribute, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   const auto known = [&](CUdevice device) {
                       return device >= 0 && device < call.machine().settings.devices;
                   };
                   if (value == nullptr || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
                       attribute > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   if (!known(source) || !known(destination) || source == destination) {
                       return CUDA_ERROR_INVALID_DEVICE;
                   }
                   *value = 0;
                   return CUDA_SUCCESS;
               });
}

SIM_PER_THREAD(cuMemcpyPeer, ptds,
               (CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n),
               (d, dc, s, sc, n))
SIM_PER_THREAD(cuMemcpyPeerAsync, ptsz,
               (CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n, CUstream t),
               (d, dc, s, sc, n, t))
SIM_PER_THREAD(cuMemcpy3DPeer, ptds, (const CUDA_MEMCPY3D_PEER* c), (c))
SIM_PER_THREAD(cuMemcpy3DPeerAsync, ptsz, (const CUDA_MEMCPY3D_PEER* c, CUstream s), (c, s))
