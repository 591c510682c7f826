// Exported calls: primary and created contexts, and each thread's stack of current ones.
#include <algorithm>

#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

CUcontext handle(Context* context) { return reinterpret_cast<CUcontext>(context); }

bool valid(Call& call, CUdevice device) {
    return device >= 0 && device < call.machine().settings.devices;
}

// Waits for nothing that never ends: work of a context that goes away is dropped.
CUresult end_context(Call& call, Context* context) {
    context->error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    call.core().look_at_values();
    const CUresult result = call.wait_for_context(*context);
    if (result != CUDA_SUCCESS) return result;
    // Another thread may have been faster.
    if (call.machine().find(handle(context)) == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    call.machine().destroy_context(context, call.site());
    return CUDA_SUCCESS;
}

CUresult create(Call& call, CUcontext* context, unsigned flags, CUdevice device) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (call.thread().contexts.full()) return CUDA_ERROR_OUT_OF_MEMORY;
    Context* made = call.machine().make_context(device, flags);
    call.thread().contexts.push_back(made);
    *context = handle(made);
    return CUDA_SUCCESS;
}

}  // namespace

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return run(CallId::cuDevicePrimaryCtxRetain, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   const DeviceState& state = call.machine().devices[device];
                   // One that is there is handed out, lost or not.
                   if (state.primary_references == 0 && state.lost != CUDA_SUCCESS) {
                       return state.lost;
                   }
                   *context = handle(call.machine().activate_primary(device));
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return run(CallId::cuDevicePrimaryCtxRelease_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   DeviceState& state = call.machine().devices[device];
                   if (state.primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
                   if (state.primary_references == 1) {
                       const CUresult result = end_context(call, state.primary.get());
                       if (result != CUDA_SUCCESS) return result;
                   }
                   --state.primary_references;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return run(CallId::cuDevicePrimaryCtxReset_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   DeviceState& state = call.machine().devices[device];
                   if (state.primary_references == 0) return CUDA_SUCCESS;
                   const CUresult result = end_context(call, state.primary.get());
                   // References outlive the reset; the next retain makes the context again.
                   state.primary_references = 0;
                   return result;
               });
}

SIM_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    return run(CallId::cuDevicePrimaryCtxSetFlags_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return CUDA_ERROR_INVALID_VALUE;
                   DeviceState& state = call.machine().devices[device];
                   state.primary_flags = flags;
                   if (state.primary_references > 0) state.primary->flags = flags;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
    return run(CallId::cuDevicePrimaryCtxGetState, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   if (!valid(call, device)) return CUDA_ERROR_INVALID_DEVICE;
                   const DeviceState& state = call.machine().devices[device];
                   *flags = state.primary_flags;
                   *active = state.primary_references > 0;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
    return run(CallId::cuCtxCreate_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) { return create(call, context, flags, device); });
}

SIM_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters,
                                   unsigned int flags, CUdevice device) {
    return run(CallId::cuCtxCreate_v4, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        // Execution affinity and graphics contexts are not simulated.
        if (parameters != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
        return create(call, context, flags, device);
    });
}

SIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    return run(CallId::cuCtxDestroy_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Context* found = call.machine().find(context);
        if (found == nullptr || found->primary) return CUDA_ERROR_INVALID_CONTEXT;
        auto& stack = call.thread().contexts;
        const bool current = !stack.empty() && stack.back() == found;
        const CUresult result = end_context(call, found);
        if (result == CUDA_SUCCESS && current) stack.pop_back();
        return result;
    });
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    return run(CallId::cuCtxPushCurrent_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
                   Context* found = call.machine().find(context);
                   if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
                   if (call.thread().contexts.full()) return CUDA_ERROR_OUT_OF_MEMORY;
                   call.thread().contexts.push_back(found);
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    return run(CallId::cuCtxPopCurrent_v2, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   auto& stack = call.thread().contexts;
                   if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
                   if (context != nullptr) *context = handle(stack.back());
                   stack.pop_back();
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    return run(CallId::cuCtxSetCurrent, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        auto& stack = call.thread().contexts;
        if (context == nullptr) {
            if (!stack.empty()) stack.pop_back();
            return CUDA_SUCCESS;
        }
        Context* found = call.machine().find(context);
        if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        if (stack.empty()) {
            stack.push_back(found);
        } else {
            stack.back() = found;
        }
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    return run(CallId::cuCtxGetCurrent, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
        if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const auto& stack = call.thread().contexts;
        *context = stack.empty() ? nullptr : handle(stack.back());
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    return run(CallId::cuCtxGetDevice, SIM_RETURN_ADDRESS, Needs::lost_context, 0, [&](Call& call) {
        if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *device = call.context().device;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxGetFlags(unsigned int* flags) {
    return run(CallId::cuCtxGetFlags, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
        // A primary context maps host memory whether that was asked for or not.
        *flags = call.context().flags | (call.context().primary ? CU_CTX_MAP_HOST : 0);
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
    return run(CallId::cuCtxGetId, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Context* found = context == nullptr ? &call.context() : call.machine().find(context);
        if (found == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        *id = found->id;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
    return run(CallId::cuCtxGetApiVersion, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (context != nullptr && call.machine().find(context) == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        *version = 3020;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
    return run(CallId::cuCtxGetLimit, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (static_cast<unsigned>(limit) >= call.context().limits.size()) {
            return CUDA_ERROR_UNSUPPORTED_LIMIT;
        }
        *value = call.context().limits[limit];
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    return run(CallId::cuCtxSetLimit, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (static_cast<unsigned>(limit) >= call.context().limits.size()) {
            return CUDA_ERROR_UNSUPPORTED_LIMIT;
        }
        call.context().limits[limit] = value;
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return run(CallId::cuCtxGetStreamPriorityRange, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call&) {
                   if (least != nullptr) *least = kLeastPriority;
                   if (greatest != nullptr) *greatest = kGreatestPriority;
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuCtxSynchronize(void) {
    return run(CallId::cuCtxSynchronize, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        Context& context = call.context();
        const CUresult refused = call.machine().captures.admit_context_wait(context);
        if (refused != CUDA_SUCCESS) return refused;
        call.observe();
        const CUresult result = call.wait_for_work_so_far(context);
        if (result != CUDA_SUCCESS) return result;
        call.synchronised();
        return context.error;
    });
}
