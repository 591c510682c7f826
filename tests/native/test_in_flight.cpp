// The looks that bound a program's work in flight: what they wait for, and what they leave alone.
#include <algorithm>
#include <vector>

#include "graphs.h"
#include "pool_bench.h"
#include "share/in_flight.h"

using namespace bench;
using namespace std::chrono_literals;
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

// Each launch with an event behind it.
class Launches {
  public:
    Launches(const Card& card, const StreamRef& stream) : card_(card), stream_(stream) {}
    ~Launches() {
        for (CUevent event : events_)
            CHECK_EQUAL(card_.call.cuEventDestroy_v2(event), CUDA_SUCCESS);
    }
    Launches(const Launches&) = delete;
    Launches& operator=(const Launches&) = delete;

    void launch(std::chrono::nanoseconds lasts) {
        const auto nanoseconds = static_cast<std::uint64_t>(lasts.count());
        CHECK_EQUAL(gpu::spin(spin_, nanoseconds, 1, stream_.handle), CUDA_SUCCESS);
        CUevent& event = events_.emplace_back();
        CHECK_EQUAL(card_.call.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        CHECK_EQUAL(card_.call.cuEventRecord(event, stream_.handle), CUDA_SUCCESS);
    }
    // Of them still on the card or before it.
    std::size_t in_flight() {
        while (done_ < events_.size() && card_.call.cuEventQuery(events_[done_]) == CUDA_SUCCESS) {
            ++done_;
        }
        return events_.size() - done_;
    }

  private:
    const Card& card_;
    const StreamRef& stream_;
    const CUfunction spin_ = gpu::kernel("vk_spin");
    std::vector<CUevent> events_;
    std::size_t done_ = 0;
};

// Of a program that never waits by itself, whenever the gate closes.
TEST(no_more_is_in_flight_than_two_looks_are_apart) {
    const Card card;
    const StreamRef stream = card.stream();
    Launches launches(card, stream);
    InFlight in_flight;
    std::size_t most = 0;
    for (int look = 0; look < 6; ++look) {
        for (std::uint32_t count = 0; count < kWindow; ++count) launches.launch(1ms);
        most = std::max(most, launches.in_flight());
        in_flight.look(card.call, stream.handle, kWindow);
        CHECK(launches.in_flight() <= kWindow);
    }
    CHECK(most > kWindow);
    CHECK(most <= 2 * kWindow);
    CHECK_EQUAL(in_flight.waits(), 5U);
    CHECK_EQUAL(card.call.cuStreamSynchronize(stream.handle), CUDA_SUCCESS);
    CHECK_EQUAL(launches.in_flight(), 0U);
}

// By the wall clock, which is what a look goes by.
TEST(looks_are_fewer_launches_apart_where_these_take_long) {
    const Card card("clock=wall,checker=off,capacity=1GiB");
    const StreamRef stream = card.stream();
    Launches launches(card, stream);
    InFlight in_flight;
    in_flight.look(card.call, stream.handle, kWindow);
    launches.launch(300ms);
    CHECK_EQUAL(in_flight.look(card.call, stream.handle, kWindow), 2 * kWindow);
    CHECK_EQUAL(in_flight.look(card.call, stream.handle, kWindow), kWindow / 2);
    launches.launch(300ms);
    in_flight.look(card.call, stream.handle, 1);
    CHECK_EQUAL(in_flight.look(card.call, stream.handle, 1), 1U);
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
