// Exported calls: streams, host functions and values.
#include <algorithm>

#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

// CU_STREAM_WAIT_VALUE_FLUSH: needs a card that can flush remote writes.
constexpr unsigned kWaitFlush = 1u << 30;

CUresult create(Call& call, CUstream* stream, unsigned flags, int priority) {
    if (stream == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    const int clamped = std::clamp(priority, kGreatestPriority, kLeastPriority);
    *stream = reinterpret_cast<CUstream>(
        call.machine().make_stream(&call.context(), flags, clamped).get());
    return CUDA_SUCCESS;
}

// What an H200 does not tell of a stream that is captured; the question alone breaks the capture.
enum class Secret : bool { no, yes };

// The frame of a call that asks one thing of a stream. Beside captures on blocking streams nothing
// is told of the legacy stream, and the question breaks them.
template <class Body>
CUresult ask(CallId id, void* site, CUstream handle, const void* out, Secret secret, Body body) {
    return run(id, site, Needs::stream, 0, [&](Call& call) -> CUresult {
        std::shared_ptr<Stream> stream;
        const CUresult found = call.find(handle, stream, Purpose::ask);
        if (found != CUDA_SUCCESS) return found;
        if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
        if (secret == Secret::yes || stream == stream->context->legacy) {
            const CUresult admitted = call.machine().captures.admit(*stream, Purpose::wait);
            if (admitted != CUDA_SUCCESS) return admitted;
        }
        body(*stream);
        return CUDA_SUCCESS;
    });
}

// The streams that are idle when this one is: the legacy stream stands for all blocking ones. Held,
// because another thread may destroy one while this one waits.
std::vector<std::shared_ptr<Stream>> streams_behind(Call& call, Stream& stream) {
    if (&stream != stream.context->legacy.get()) return {stream.shared_from_this()};
    std::vector<std::shared_ptr<Stream>> blocking;
    for (Stream* each : call.machine().all_streams(stream.context)) {
        if (each->blocking) blocking.push_back(each->shared_from_this());
    }
    return blocking;
}

CUresult host_function(Call& call, CUstream handle, CUhostFn function, CUstreamCallback callback,
                       void* data) {
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream);
    if (found != CUDA_SUCCESS) return found;
    if (function == nullptr && callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (callback != nullptr && stream->capture != nullptr) {
        Captures::invalidate(*stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    Operation* operation = call.prepare(Kind::host_function, Lane::none, stream);
    operation->latency = call.machine().profile().kernels.host_function_ns;
    operation->function = function;
    operation->callback = callback;
    operation->data = data;
    call.machine().order_for_checker(*stream);
    return call.enqueue(operation);
}

CUresult value_operation(Call& call, Kind kind, CUstream handle, CUdeviceptr address,
                         std::uint64_t value, unsigned width, unsigned flags) {
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(handle, stream);
    if (found != CUDA_SUCCESS) return found;
    if (address == 0 || address % width != 0) return CUDA_ERROR_INVALID_VALUE;
    if (kind == Kind::write_value && flags != CU_STREAM_WRITE_VALUE_DEFAULT) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (kind == Kind::wait_value && (flags & kWaitFlush) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (kind == Kind::wait_value && flags > CU_STREAM_WAIT_VALUE_NOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<Piece> pieces;
    if (!call.machine().space().resolve(address, width, pieces)) return CUDA_ERROR_INVALID_VALUE;
    Operation* operation = call.prepare(kind, Lane::none, stream);
    operation->destination = address;
    operation->bytes = width;
    operation->value = value;
    operation->width = width;
    operation->condition = flags;
    // Values are how streams order themselves, so the word is not checked for races.
    call.machine().order_for_checker(*stream);
    return call.enqueue(operation);
}

}  // namespace

SIM_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
    return run(CallId::cuStreamCreate, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) { return create(call, stream, flags, 0); });
}

SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
    return run(CallId::cuStreamCreateWithPriority, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) { return create(call, stream, flags, priority); });
}

SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    return run(CallId::cuStreamDestroy_v2, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        const auto found = call.machine().find_stream(stream);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (found->context->error != CUDA_SUCCESS) return found->context->error;
        call.machine().destroy_stream(found.get());
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return run(CallId::cuStreamSynchronize, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        std::shared_ptr<Stream> stream;
        const CUresult found = call.find(handle, stream, Purpose::wait);
        if (found != CUDA_SUCCESS) return found;
        call.observe();
        const CUresult result = call.wait_for(stream);
        if (result != CUDA_SUCCESS) return result;
        call.synchronised();
        return stream->context->error;
    });
}

SIM_EXPORT CUresult cuStreamQuery(CUstream handle) {
    return run(CallId::cuStreamQuery, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        std::shared_ptr<Stream> stream;
        const CUresult found = call.find(handle, stream, Purpose::wait);
        if (found != CUDA_SUCCESS) return found;
        call.observe();
        if (stream->context->error != CUDA_SUCCESS) return stream->context->error;
        const auto streams = streams_behind(call, *stream);
        for (const auto& each : streams) {
            if (each->pending > 0) return CUDA_ERROR_NOT_READY;
        }
        if (call.machine().settings.checker) {
            if (stream == stream->context->legacy) {
                call.machine().checker.host_waited(stream->context->retired_blocking);
            }
            for (const auto& each : streams) {
                call.machine().checker.host_waited(each->actor.clock);
            }
        }
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    return run(CallId::cuStreamWaitEvent, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        std::shared_ptr<Stream> stream;
        Event* awaited = nullptr;
        CUresult found = call.find(handle, stream);
        if (found == CUDA_SUCCESS) found = call.find(event, awaited);
        if (found != CUDA_SUCCESS) return found;
        if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
        if (stream->capture != nullptr || awaited->capture != nullptr) {
            // A wait for an event outside as a node of its own is not simulated.
            if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
            return Captures::wait(stream, *awaited);
        }
        if (!awaited->recorded) return CUDA_SUCCESS;
        call.machine().order_for_checker(*stream);
        if (call.machine().settings.checker) {
            Checker::order_after(stream->actor, awaited->clock);
        }
        // An event that has been reached at the time of the call holds nothing up.
        if (awaited->pending == nullptr) return CUDA_SUCCESS;
        Operation* operation = call.prepare(Kind::wait_event, Lane::none, stream);
        operation->latency = call.machine().profile().kernels.event_wait_ns;
        Core::depend(operation, awaited->pending);
        return call.enqueue(operation);
    });
}

SIM_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
    return ask(CallId::cuStreamGetId, SIM_RETURN_ADDRESS, stream, id, Secret::yes,
               [&](Stream& found) { *id = found.id; });
}

SIM_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    return ask(CallId::cuStreamGetCtx, SIM_RETURN_ADDRESS, stream, context, Secret::no,
               [&](Stream& found) { *context = reinterpret_cast<CUcontext>(found.context); });
}

SIM_EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
    return ask(CallId::cuStreamGetFlags, SIM_RETURN_ADDRESS, stream, flags, Secret::yes,
               [&](Stream& found) { *flags = found.flags; });
}

SIM_EXPORT CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    return ask(CallId::cuStreamGetPriority, SIM_RETURN_ADDRESS, stream, priority, Secret::no,
               [&](Stream& found) { *priority = found.priority; });
}

SIM_EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
    return ask(CallId::cuStreamGetDevice, SIM_RETURN_ADDRESS, stream, device, Secret::no,
               [&](Stream& found) { *device = found.context->device; });
}

SIM_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    return run(CallId::cuLaunchHostFunc, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) { return host_function(call, stream, function, nullptr, data); });
}

SIM_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                                        unsigned int flags) {
    return run(CallId::cuStreamAddCallback, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        return host_function(call, stream, nullptr, callback, data);
    });
}

SIM_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                            unsigned int flags) {
    return run(
        CallId::cuStreamWriteValue32_v2, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
            return value_operation(call, Kind::write_value, stream, address, value, 4, flags);
        });
}

SIM_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                            unsigned int flags) {
    return run(
        CallId::cuStreamWriteValue64_v2, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
            return value_operation(call, Kind::write_value, stream, address, value, 8, flags);
        });
}

SIM_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                           unsigned int flags) {
    return run(CallId::cuStreamWaitValue32_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) {
                   return value_operation(call, Kind::wait_value, stream, address, value, 4, flags);
               });
}

SIM_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                           unsigned int flags) {
    return run(CallId::cuStreamWaitValue64_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) {
                   return value_operation(call, Kind::wait_value, stream, address, value, 8, flags);
               });
}

SIM_PER_THREAD(cuStreamSynchronize, ptsz, (CUstream s), (s))
SIM_PER_THREAD(cuStreamQuery, ptsz, (CUstream s), (s))
SIM_PER_THREAD(cuStreamWaitEvent, ptsz, (CUstream s, CUevent e, unsigned f), (s, e, f))
SIM_PER_THREAD(cuStreamGetId, ptsz, (CUstream s, unsigned long long* id), (s, id))
SIM_PER_THREAD(cuStreamGetCtx, ptsz, (CUstream s, CUcontext* c), (s, c))
SIM_PER_THREAD(cuStreamGetFlags, ptsz, (CUstream s, unsigned* f), (s, f))
SIM_PER_THREAD(cuStreamGetPriority, ptsz, (CUstream s, int* p), (s, p))
SIM_PER_THREAD(cuStreamGetDevice, ptsz, (CUstream s, CUdevice* d), (s, d))
SIM_PER_THREAD(cuLaunchHostFunc, ptsz, (CUstream s, CUhostFn f, void* d), (s, f, d))
SIM_PER_THREAD(cuStreamAddCallback, ptsz, (CUstream s, CUstreamCallback c, void* d, unsigned f),
               (s, c, d, f))
SIM_PER_THREAD(cuStreamWriteValue32_v2, ptsz, (CUstream s, CUdeviceptr a, cuuint32_t v, unsigned f),
               (s, a, v, f))
SIM_PER_THREAD(cuStreamWriteValue64_v2, ptsz, (CUstream s, CUdeviceptr a, cuuint64_t v, unsigned f),
               (s, a, v, f))
SIM_PER_THREAD(cuStreamWaitValue32_v2, ptsz, (CUstream s, CUdeviceptr a, cuuint32_t v, unsigned f),
               (s, a, v, f))
SIM_PER_THREAD(cuStreamWaitValue64_v2, ptsz, (CUstream s, CUdeviceptr a, cuuint64_t v, unsigned f),
               (s, a, v, f))
