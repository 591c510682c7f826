// Issues copies, and waits for them on the host.
#include "swap/mover.h"

#include "base/rules.h"

namespace vramkit::swap {

std::unique_ptr<Mover> Mover::open(const DriverTable& call, Failure& why) {
    std::unique_ptr<Mover> made(new Mover(call));
    for (CUstream* stream : {&made->out_, &made->in_}) {
        if (failed(call.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0),
                   "cuStreamCreateWithPriority", why)) {
            return nullptr;
        }
    }
    constexpr unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC;
    for (CUevent* event : {&made->copies_[0].event, &made->copies_[1].event, &made->arrived_}) {
        if (failed(call.cuEventCreate(event, flags), "cuEventCreate", why)) return nullptr;
    }
    return made;
}

Mover::~Mover() {
    for (const CUevent event : {copies_[0].event, copies_[1].event, arrived_}) {
        if (event != nullptr) call_.cuEventDestroy_v2(event);
    }
    for (const CUstream stream : {out_, in_}) {
        if (stream == nullptr) continue;
        call_.cuStreamSynchronize(stream);  // the host memory of its copies goes next
        call_.cuStreamDestroy_v2(stream);
    }
}

bool Mover::copy_out(const Chunk& chunk, Failure& why) {
    if (failed(call_.cuMemcpyDtoHAsync_v2(chunk.copy.data, chunk.address, chunk.bytes, out_),
               "cuMemcpyDtoHAsync", why)) {
        return false;
    }
    Copy& copy = copies_[issued_++ % kWindow];
    copy.recorded = call_.cuEventRecord(copy.event, out_) == CUDA_SUCCESS;
    return true;
}

bool Mover::wait_out(Failure& why) {
    const Copy& copy = copies_[awaited_++ % kWindow];
    if (is_broken(Rule::swapped_chunk_stays_until_copy_is_done)) return true;
    if (wait(copy.event, copy.recorded, out_, why)) return true;
    unsettled_ = true;
    return false;
}

bool Mover::copy_in(const Chunk& chunk, Failure& why) {
    return !failed(call_.cuMemcpyHtoDAsync_v2(chunk.address, chunk.copy.data, chunk.bytes, in_),
                   "cuMemcpyHtoDAsync", why);
}

bool Mover::zero(const Chunk& chunk, Failure& why) {
    return !failed(call_.cuMemsetD8Async(chunk.address, 0, chunk.bytes, in_), "cuMemsetD8Async",
                   why);
}

bool Mover::wait_in(Failure& why) {
    if (is_broken(Rule::program_waits_for_swap_in)) return true;
    const bool recorded = call_.cuEventRecord(arrived_, in_) == CUDA_SUCCESS;
    return wait(arrived_, recorded, in_, why);
}

bool Mover::settle(Failure& why) { return !unsettled_ || wait_for_out_stream(why); }

bool Mover::wait_for_out_stream(Failure& why) {
    ++waits_;
    unsettled_ = failed(call_.cuStreamSynchronize(out_), "cuStreamSynchronize", why);
    return !unsettled_;
}

bool Mover::abandon(Failure& why) {
    awaited_ = issued_;
    return wait_for_out_stream(why);
}

bool Mover::wait(CUevent event, bool recorded, CUstream stream, Failure& why) {
    ++waits_;
    if (recorded && call_.cuEventSynchronize(event) == CUDA_SUCCESS) return true;
    return !failed(call_.cuStreamSynchronize(stream), "cuStreamSynchronize", why);
}

}  // namespace vramkit::swap
