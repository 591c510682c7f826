// Exported calls: events.
#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

constexpr unsigned kEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult record(Call& call, CUevent event, CUstream stream, unsigned flags) {
    Event* found = nullptr;
    std::shared_ptr<Stream> target;
    CUresult result = call.find(stream, target);  // may wait: the event comes after
    if (result == CUDA_SUCCESS) result = call.find(event, found);
    if (result != CUDA_SUCCESS) return result;
    if (found->context != target->context) return CUDA_ERROR_INVALID_HANDLE;
    if (target->capture != nullptr) {
        // A record that is a node of its own, for waits outside, is not simulated.
        if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
        Captures::record(*target, *found);
        return CUDA_SUCCESS;
    }
    found->capture.reset();
    Operation* operation = call.prepare(Kind::record, Lane::none, target);
    operation->latency = call.machine().profile().kernels.event_record_ns;
    operation->event = found;
    call.machine().order_for_checker(*target);
    if (call.machine().settings.checker) found->clock = target->actor.clock;
    // An earlier record that has not been reached counts no more.
    if (found->pending != nullptr) found->pending->event = nullptr;
    found->recorded = true;
    found->pending = operation;
    return call.enqueue(operation);
}

CUresult elapsed(Call& call, float* milliseconds, CUevent start, CUevent end) {
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Event* first = call.machine().find(start);
    const Event* second = call.machine().find(end);
    if (first == nullptr || second == nullptr || first->context != second->context) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (first->context->error != CUDA_SUCCESS) return first->context->error;
    if (((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) != 0 || !first->recorded ||
        !second->recorded) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const Event* event : {first, second}) {
        const CUresult refused = Captures::refuse_host(*event, false);
        if (refused != CUDA_SUCCESS) return refused;
    }
    call.observe();
    // Another thread may have destroyed one meanwhile.
    first = call.machine().find(start);
    second = call.machine().find(end);
    if (first == nullptr || second == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (first->pending != nullptr || second->pending != nullptr) return CUDA_ERROR_NOT_READY;
    // As good as a successful query of both.
    if (call.machine().settings.checker) {
        for (const Event* event : {first, second}) call.machine().checker.host_waited(event->clock);
    }
    *milliseconds = static_cast<float>((second->time - first->time) * 1e-6);
    return CUDA_SUCCESS;
}

}  // namespace

SIM_EXPORT CUresult cuEventCreate(CUevent* event, unsigned int flags) {
    return run(CallId::cuEventCreate, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (event == nullptr || (flags & ~kEventFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
        // Events between processes need timing switched off, and are not simulated yet.
        if ((flags & CU_EVENT_INTERPROCESS) != 0) {
            return (flags & CU_EVENT_DISABLE_TIMING) == 0 ? CUDA_ERROR_INVALID_VALUE
                                                          : CUDA_ERROR_NOT_SUPPORTED;
        }
        *event = reinterpret_cast<CUevent>(call.machine().make_event(&call.context(), flags));
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    return run(CallId::cuEventDestroy_v2, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        Event* found = nullptr;
        const CUresult result = call.find(event, found);
        if (result != CUDA_SUCCESS) return result;
        call.machine().destroy_event(found);
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    return run(CallId::cuEventRecord, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return record(call, event, stream, 0); });
}

SIM_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    return run(CallId::cuEventRecordWithFlags, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) {
                   if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
                   return record(call, event, stream, flags);
               });
}

SIM_EXPORT CUresult cuEventQuery(CUevent event) {
    return run(CallId::cuEventQuery, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        Event* found = nullptr;
        CUresult result = call.find(event, found);
        if (result == CUDA_SUCCESS) result = Captures::refuse_host(*found, true);
        if (result != CUDA_SUCCESS) return result;
        call.observe();
        // Another thread may have destroyed it meanwhile.
        result = call.find(event, found);
        if (result != CUDA_SUCCESS) return result;
        if (found->pending != nullptr) return CUDA_ERROR_NOT_READY;
        if (call.machine().settings.checker) call.machine().checker.host_waited(found->clock);
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuEventSynchronize(CUevent event) {
    return run(CallId::cuEventSynchronize, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        Event* found = nullptr;
        CUresult result = call.find(event, found);
        if (result == CUDA_SUCCESS) result = Captures::refuse_host(*found, true);
        if (result != CUDA_SUCCESS) return result;
        call.observe();
        // The event may be destroyed by another thread while this one waits.
        result = call.wait([&] {
            found = call.machine().find(event);
            return found == nullptr || found->pending == nullptr;
        });
        if (result != CUDA_SUCCESS || found == nullptr) return result;
        if (call.machine().settings.checker) {
            call.machine().checker.host_waited(found->clock);
        }
        call.synchronised();
        return found->context->error;
    });
}

SIM_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return run(CallId::cuEventElapsedTime, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return elapsed(call, milliseconds, start, end); });
}

SIM_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
    return run(CallId::cuEventElapsedTime_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return elapsed(call, milliseconds, start, end); });
}

SIM_PER_THREAD(cuEventRecord, ptsz, (CUevent e, CUstream s), (e, s))
SIM_PER_THREAD(cuEventRecordWithFlags, ptsz, (CUevent e, CUstream s, unsigned f), (e, s, f))
