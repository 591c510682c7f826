// The virtual clock, to the nanosecond, on a card with round figures.
#include <cmath>
#include <limits>
#include <thread>

#include "gpu.h"

namespace {

using gpu::cu;
using gpu::sim;

constexpr size_t kBytes = 1 << 20;

// Times are sums of a few terms: equal but for the last bits.
bool is_near(double seen, double expected) {
    if (std::abs(seen - expected) <= 1e-9 * std::abs(expected) + 1e-9) return true;
    std::fprintf(stderr, "seen %.9f, expected %.9f\n", seen, expected);
    return false;
}

// A fresh card with round figures, current on this thread; the clock stands at 0.
struct Card {
    CUfunction spin;
    CUdeviceptr device;
    CUdeviceptr other;
    void* host;

    explicit Card(const std::string& more = "") {
        gpu::reset_round(more);
        gpu::use_device();
        spin = gpu::kernel("vk_spin");
        device = gpu::make_memory(kBytes);
        other = gpu::make_memory(kBytes);
        host = gpu::make_pinned(kBytes);
        CHECK_EQUAL(sim().now(), 0.0);
    }

    void to_device(size_t bytes, CUstream stream) const {
        CHECK_EQUAL(cu().cuMemcpyHtoDAsync_v2(device, host, bytes, stream), CUDA_SUCCESS);
    }
    void to_host(size_t bytes, CUstream stream) const {
        CHECK_EQUAL(cu().cuMemcpyDtoHAsync_v2(host, other, bytes, stream), CUDA_SUCCESS);
    }
    void work(std::uint64_t nanoseconds, unsigned blocks, CUstream stream) const {
        CHECK_EQUAL(gpu::spin(spin, nanoseconds, blocks, stream), CUDA_SUCCESS);
    }
    // The moment at which the stream has done all it was given; the host waits for it.
    double end_of(CUstream stream) const {
        CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
        return sim().now();
    }
};

TEST(clock_advances_by_numbers_that_it_can_hold) {
    const Card card;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
    for (const double bad : {-1.0, -kInfinity, kInfinity, kNoNumber, 1e19}) {
        CHECK_EQUAL(sim().advance(bad), 1);
    }
    CHECK_EQUAL(sim().now(), 0.0);
    CHECK_EQUAL(sim().advance(1000), 0);
    CHECK_EQUAL(sim().now(), 1000.0);
}

TEST(copy_takes_its_latency_and_its_bytes) {
    const Card card;
    const CUstream stream = gpu::make_stream();
    card.to_device(40000, stream);
    const double end = gpu::kCopyLatency + 40000 / gpu::kToDevice;
    CHECK(is_near(card.end_of(stream), end));
    card.to_host(40000, stream);
    CHECK(is_near(card.end_of(stream), end + gpu::kCopyLatency + 40000 / gpu::kToHost));
}

TEST(set_takes_the_rate_of_sets) {
    const Card card;
    const CUstream stream = gpu::make_stream();
    CHECK_EQUAL(cu().cuMemsetD8Async(card.device, 1, 64000, stream), CUDA_SUCCESS);
    CHECK(is_near(card.end_of(stream), gpu::kLaunchLatency + 64000 / gpu::kSet));
}

TEST(copy_and_kernel_overlap) {
    const Card card;
    const CUstream first = gpu::make_stream(), second = gpu::make_stream();
    card.to_device(40000, first);
    card.work(30000, gpu::kMultiprocessors, second);
    CHECK(is_near(card.end_of(first), gpu::kCopyLatency + 10000));
    CHECK(is_near(card.end_of(second), gpu::kLaunchLatency + 30000));
}

TEST(two_copies_one_way_share_the_link) {
    const Card card;
    const CUstream first = gpu::make_stream(), second = gpu::make_stream();
    card.to_device(40000, first);
    CHECK_EQUAL(cu().cuMemcpyHtoDAsync_v2(card.other, card.host, 80000, second), CUDA_SUCCESS);
    // Half the rate each until the shorter one is done, then the longer one has it all.
    const double shorter = gpu::kCopyLatency + 40000 / (gpu::kToDevice / 2);
    CHECK(is_near(card.end_of(first), shorter));
    CHECK(is_near(card.end_of(second), shorter + 40000 / gpu::kToDevice));
}

TEST(both_ways_at_once_run_at_the_duplex_rate) {
    const Card card("checker=off");
    const CUstream down = gpu::make_stream(), up = gpu::make_stream();
    card.to_device(40000, down);
    sim().advance(4000);
    card.to_host(10000, up);
    // Alone from 1000 to 5000, with the other until that one ends, then alone again.
    const double meet = 4000 + gpu::kCopyLatency;
    const double alone = (meet - gpu::kCopyLatency) * gpu::kToDevice;
    const double up_end = meet + 10000 / gpu::kDuplex;
    const double together = (up_end - meet) * gpu::kDuplex;
    CHECK(is_near(card.end_of(up), up_end));
    CHECK(is_near(card.end_of(down), up_end + (40000 - alone - together) / gpu::kToDevice));
}

TEST(kernels_share_the_card_by_demand) {
    const Card card;
    const CUstream first = gpu::make_stream(), second = gpu::make_stream();
    card.work(10000, 6, first);
    card.work(10000, 8, second);
    // The second gets the four multiprocessors that are left: half the speed it asked for, until
    // the first one's leave.
    const double first_end = gpu::kLaunchLatency + 10000;
    CHECK(is_near(card.end_of(first), first_end));
    CHECK(is_near(card.end_of(second), first_end + 5000));
}

TEST(urgent_kernel_goes_first_at_the_end_of_a_wave) {
    const Card card;
    const CUstream low = gpu::make_stream(), high = gpu::make_stream(CU_STREAM_NON_BLOCKING, -1);
    card.work(10000, 2 * gpu::kMultiprocessors, low);  // two waves that fill the card
    sim().advance(2000);
    card.work(3000, 5, high);
    // Blocks that run are not stopped; the second wave gets the half that is left, then all.
    const double wave_end = gpu::kLaunchLatency + 10000;
    CHECK(is_near(card.end_of(high), wave_end + 3000));
    CHECK(is_near(card.end_of(low), wave_end + 3000 + (10000 - 1500)));
}

TEST(event_wait_holds_a_stream_up) {
    const Card card;
    const CUstream first = gpu::make_stream(), second = gpu::make_stream();
    const CUevent event = gpu::make_event(), start = gpu::make_event(), end = gpu::make_event();
    CHECK_EQUAL(cu().cuEventRecord(start, second), CUDA_SUCCESS);
    card.work(20000, 1, first);
    CHECK_EQUAL(cu().cuEventRecord(event, first), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
    card.to_device(4000, second);
    CHECK_EQUAL(cu().cuEventRecord(end, second), CUDA_SUCCESS);
    const double recorded = gpu::kLaunchLatency + 20000 + gpu::kRecord;
    const double done = recorded + gpu::kWait + gpu::kCopyLatency + 1000 + gpu::kRecord;
    CHECK(is_near(card.end_of(second), done));
    float milliseconds = 0;
    CHECK_EQUAL(cu().cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
    CHECK(std::abs(milliseconds * 1e6 - (done - gpu::kRecord)) < 1e-6 * done);
}

TEST(query_neither_waits_nor_runs_ahead) {
    const Card card;
    const CUstream stream = gpu::make_stream();
    card.work(10000, 1, stream);
    CHECK_EQUAL(cu().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_EQUAL(sim().now(), 0.0);
    sim().advance(10499);
    CHECK_EQUAL(cu().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_EQUAL(sim().now(), 10499.0);
    sim().advance(1);
    CHECK_EQUAL(cu().cuStreamQuery(stream), CUDA_SUCCESS);
    CHECK_EQUAL(sim().now(), 10500.0);
}

TEST(free_waits_for_the_card) {
    const Card card("checker=off");
    card.work(10000, 1, gpu::make_stream());
    CHECK_EQUAL(cu().cuMemFree_v2(card.device), CUDA_SUCCESS);
    CHECK(is_near(sim().now(), gpu::kLaunchLatency + 10000));
}

TEST(threads_have_host_clocks_of_their_own) {
    const Card card;
    sim().advance(1000000);
    double elsewhere = -1;
    std::thread([&] { elsewhere = sim().now(); }).join();
    CHECK_EQUAL(elsewhere, 0.0);
    CHECK_EQUAL(sim().now(), 1000000.0);
}

TEST(unseen_work_is_timed_from_the_host_that_issues_it) {
    const Card card;
    const CUstream stream = gpu::make_stream();
    sim().advance(7000);
    card.to_device(4000, stream);
    CHECK(is_near(card.end_of(stream), 7000 + gpu::kCopyLatency + 1000));
}

TEST(same_calls_take_the_same_time_to_the_last_bit) {
    const auto run = [] {
        const Card card("checker=off");
        std::vector<double> times;
        const CUstream streams[] = {gpu::make_stream(), gpu::make_stream(), gpu::make_stream()};
        for (unsigned i = 0; i < 60; ++i) {
            const CUstream stream = streams[i % 3];
            if (i % 4 == 0) card.work(1000 + i * 7, 1 + i % 10, stream);
            if (i % 4 == 1) card.to_device(1000 + i * 13, stream);
            if (i % 4 == 2) card.to_host(1000 + i * 17, stream);
            if (i % 4 == 3) sim().advance(i * 3.3);
            if (i % 7 == 0) times.push_back(card.end_of(streams[(i + 1) % 3]));
        }
        CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
        times.push_back(sim().now());
        return times;
    };
    const auto first = run();
    CHECK(first == run());
    CHECK(first == run());
}

}  // namespace
