// Contexts: a block belongs to one, and goes with it.
#include "gate/hooks.h"
#include "gate/recording.h"

namespace vramkit::gate::hooks {
namespace {

CUresult made(const CallId& call, CUresult result, const CUcontext* context, CUdevice device) {
    if (result == CUDA_SUCCESS) {
        record({.kind = Kind::context,
                .call = call,
                .object = static_cast<std::uint64_t>(device),
                .context = reinterpret_cast<std::uint64_t>(*context)});
    }
    return result;
}

template <class Function, class Argument>
CUresult ended(Kind kind, const Call<Function>& call, Argument argument, std::uint64_t object,
               CUcontext context) {
    const std::uint64_t before = time_now();
    const CUresult result = call(argument);
    if (result == CUDA_SUCCESS) {
        record({.kind = kind,
                .call = call,
                .object = object,
                .context = reinterpret_cast<std::uint64_t>(context),
                .time_ns = before});
    }
    return result;
}

}  // namespace

CUresult retain_primary_context(const Call<CUresult(CUcontext*, CUdevice)>& call,
                                CUcontext* context, CUdevice device) {
    return made(call, call(context, device), context, device);
}

CUresult create_context(const Call<CUresult(CUcontext*, unsigned int, CUdevice)>& call,
                        CUcontext* context, unsigned int flags, CUdevice device) {
    return made(call, call(context, flags, device), context, device);
}

CUresult create_context_v3(
    const Call<CUresult(CUcontext*, CUexecAffinityParam*, int, unsigned int, CUdevice)>& call,
    CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned int flags,
    CUdevice device) {
    return made(call, call(context, affinity, count, flags, device), context, device);
}

CUresult create_context_v4(
    const Call<CUresult(CUcontext*, CUctxCreateParams*, unsigned int, CUdevice)>& call,
    CUcontext* context, CUctxCreateParams* parameters, unsigned int flags, CUdevice device) {
    return made(call, call(context, parameters, flags, device), context, device);
}

CUresult release_primary_context(const Call<CUresult(CUdevice)>& call, CUdevice device) {
    return ended(Kind::context_released, call, device, device, nullptr);
}

CUresult reset_primary_context(const Call<CUresult(CUdevice)>& call, CUdevice device) {
    return ended(Kind::context_reset, call, device, device, nullptr);
}

CUresult destroy_context(const Call<CUresult(CUcontext)>& call, CUcontext context) {
    return ended(Kind::context_destroyed, call, context, 0, context);
}

}  // namespace vramkit::gate::hooks
