// The looks that bound a program's work in flight: what they wait for, and what they leave alone.
#include "graphs.h"
#include "pool_bench.h"
#include "share/in_flight.h"

using namespace bench;
using vramkit::share::InFlight;

namespace {

constexpr std::uint32_t kWindow = 64;

CUresult of_context(const char* name, CUcontext context) {
    return graphs::find<CUresult(CUcontext)>(name)(context);
}

CUcontext make_context() {
    CUcontext made = nullptr;
    const auto create = graphs::find<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2");
    REQUIRE(create(&made, 0, 0) == CUDA_SUCCESS);
    return made;
}

}  // namespace

TEST(work_of_the_look_before_the_last_is_waited_for) {
    const Card card;
    const StreamRef stream = card.stream();
    InFlight in_flight;
    CHECK_EQUAL(in_flight.look(card.call, stream.handle, kWindow), kWindow);
    // Nothing runs: the next look may be later.
    CHECK_EQUAL(in_flight.look(card.call, stream.handle, kWindow), 2 * kWindow);
    CHECK_EQUAL(in_flight.waits(), 0U);
    card.occupy(stream);
    in_flight.look(card.call, stream.handle, kWindow);
    CHECK_EQUAL(in_flight.waits(), 0U);
    in_flight.look(card.call, stream.handle, kWindow);
    CHECK_EQUAL(in_flight.waits(), 1U);
    CHECK_EQUAL(card.call.cuStreamQuery(stream.handle), CUDA_SUCCESS);
}

TEST(looks_break_no_capture) {
    const Card card;
    const StreamRef captured = card.stream(), beside = card.stream();
    InFlight in_flight;
    CHECK_EQUAL(graphs::begin_capture(captured.handle, CU_STREAM_CAPTURE_MODE_GLOBAL),
                CUDA_SUCCESS);
    for (int look = 0; look < 3; ++look) {
        card.occupy(beside);
        in_flight.look(card.call, beside.handle, kWindow);
    }
    CHECK_EQUAL(in_flight.waits(), 2U);
    CUgraph graph = nullptr;
    CHECK_EQUAL(graphs::end_capture(captured.handle, &graph), CUDA_SUCCESS);
    CHECK_EQUAL(graphs::destroy(graph), CUDA_SUCCESS);
}

TEST(events_of_a_context_that_has_ended_are_left_alone) {
    const Card card;
    const StreamRef stream = card.stream();
    InFlight in_flight;
    const CUcontext ends = make_context();
    in_flight.look(card.call, gpu::make_stream(), kWindow);
    CHECK_EQUAL(of_context("cuCtxDestroy_v2", ends), CUDA_SUCCESS);
    CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
    gpu::sim().reset_call_counts();
    CHECK_EQUAL(in_flight.look(card.call, stream.handle, kWindow), kWindow);
    CHECK_EQUAL(card.calls("cuEventQuery"), 0U);
    CHECK_EQUAL(in_flight.look(card.call, stream.handle, kWindow), 2 * kWindow);
    CHECK_EQUAL(card.calls("cuEventQuery"), 1U);
}
