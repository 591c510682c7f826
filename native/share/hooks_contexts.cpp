// Contexts, and what goes with them: memory, captures of their streams.
#include "share/hooks.h"
#include "share/stream_ordered.h"
#include "share/unswappable.h"

namespace vramkit::share::hooks {

CUresult end_capture(const Call<CUresult(CUstream, CUgraph*)>& call, CUstream stream,
                     CUgraph* graph) {
    const CUresult result = call(stream, graph);
    // With whatever answer: what is refused to another thread ends the capture too, as an H200 was
    // seen to do (tests/conformance/test_capture_rules.py).
    Program::get().capture_ends(capture_key(call, stream));
    return result;
}

CUresult destroy_stream(const Call<CUresult(CUstream)>& call, CUstream stream) {
    Program& program = Program::get();
    if (!program.forked()) {
        program.stream_ending(stream);
        StreamOrdered::get().stream_ending(stream);
    }
    return call(stream);
}

CUresult destroy_context(const Call<CUresult(CUcontext)>& call, CUcontext context) {
    Program& program = Program::get();
    if (!program.forked()) {
        program.context_ending(context);
        Unswappable::get().forget_all_of(context);
    }
    return call(context);
}

CUresult attach_context(const Call<CUresult(CUcontext*, unsigned int)>& call, CUcontext* context,
                        unsigned int flags) {
    const CUresult result = call(context, flags);
    if (result == CUDA_SUCCESS) Program::get().count_uses(*context, 1);
    return result;
}

// Ends the context with its last use, if it is the current one: others the driver refuses.
CUresult detach_context(const Call<CUresult(CUcontext)>& call, CUcontext context) {
    Program& program = Program::get();
    if (program.forked()) return call(context);
    CUcontext current = nullptr;
    program.call().cuCtxGetCurrent(&current);
    if (current == context && program.is_last_use(context)) return destroy_context(call, context);
    const CUresult result = call(context);
    if (result == CUDA_SUCCESS) program.count_uses(context, -1);
    return result;
}

CUresult retain_primary_context(const Call<CUresult(CUcontext*, CUdevice)>& call,
                                CUcontext* context, CUdevice device) {
    const CUresult result = call(context, device);
    if (result == CUDA_SUCCESS) Program::get().primary_retained(device);
    return result;
}

CUresult release_primary_context(const Call<CUresult(CUdevice)>& call, CUdevice device) {
    Program& program = Program::get();
    // The reference that is left is the card's, and not the program's to give back.
    if (!program.primary_releasing(device)) return CUDA_ERROR_INVALID_CONTEXT;
    const CUresult result = call(device);
    if (result == CUDA_SUCCESS) program.primary_released(device);
    return result;
}

CUresult reset_primary_context(const Call<CUresult(CUdevice)>& call, CUdevice device) {
    Program& program = Program::get();
    if (!program.forked()) {
        StreamOrdered::get().device_resetting(device);
        if (!program.primary_resetting(device)) return CUDA_ERROR_UNKNOWN;
        Unswappable::get().forget_all_of(device);
    }
    return call(device);
}

}  // namespace vramkit::share::hooks
