// Faults on demand: calls that fail, calls that dawdle, memory that runs out, a card that is gone.
#include <functional>

#include "gpu.h"

namespace {

using gpu::cu;
using gpu::sim;

constexpr size_t kBytes = 1 << 20;

// What the calls below work on.
struct Bench {
    CUstream stream;
    CUevent event;
    CUdeviceptr device;
    void* host;
    CUfunction spin;

    Bench() {
        gpu::reset_round();
        gpu::use_device();
        stream = gpu::make_stream();
        event = gpu::make_event();
        device = gpu::make_memory(kBytes);
        host = gpu::make_pinned(kBytes);
        spin = gpu::kernel("vk_spin");
    }
};

void inject(const char* glob, std::uint64_t nth, std::uint64_t times, int code,
            double delay_ns = 0) {
    CHECK_EQUAL(sim().inject(glob, nth, times, code, delay_ns), 0);
}

struct Kind {
    const char* symbol;
    std::function<CUresult(Bench&)> call;
};

// One call of each kind that can be made again and again.
const std::vector<Kind>& kinds() {
    static const std::vector<Kind> all = {
        {"cuCtxSynchronize", [](Bench&) { return cu().cuCtxSynchronize(); }},
        {"cuStreamCreateWithPriority",
         [](Bench&) {
             CUstream made;
             return cu().cuStreamCreateWithPriority(&made, 0, 0);
         }},
        {"cuStreamSynchronize", [](Bench& b) { return cu().cuStreamSynchronize(b.stream); }},
        {"cuEventCreate",
         [](Bench&) {
             CUevent made;
             return cu().cuEventCreate(&made, 0);
         }},
        {"cuEventRecord", [](Bench& b) { return cu().cuEventRecord(b.event, b.stream); }},
        {"cuStreamWaitEvent",
         [](Bench& b) { return cu().cuStreamWaitEvent(b.stream, b.event, 0); }},
        {"cuMemAlloc_v2",
         [](Bench&) {
             CUdeviceptr made;
             return cu().cuMemAlloc_v2(&made, 4096);
         }},
        {"cuMemFree_v2", [](Bench&) { return cu().cuMemFree_v2(0); }},
        {"cuMemHostAlloc",
         [](Bench&) {
             void* made;
             return cu().cuMemHostAlloc(&made, 4096, 0);
         }},
        {"cuMemGetInfo_v2",
         [](Bench&) {
             size_t free, total;
             return cu().cuMemGetInfo_v2(&free, &total);
         }},
        {"cuMemcpyHtoDAsync_v2",
         [](Bench& b) { return cu().cuMemcpyHtoDAsync_v2(b.device, b.host, 64, b.stream); }},
        {"cuMemcpyDtoHAsync_v2",
         [](Bench& b) { return cu().cuMemcpyDtoHAsync_v2(b.host, b.device, 64, b.stream); }},
        {"cuMemsetD8Async",
         [](Bench& b) { return cu().cuMemsetD8Async(b.device, 1, 64, b.stream); }},
        {"cuLaunchKernel", [](Bench& b) { return gpu::spin(b.spin, 100, 1, b.stream); }},
        {"cuMemAddressReserve",
         [](Bench&) {
             CUdeviceptr made;
             return cu().cuMemAddressReserve(&made, 2 << 20, 0, 0, 0);
         }},
        {"cuStreamWriteValue32_v2",
         [](Bench& b) { return cu().cuStreamWriteValue32_v2(b.stream, b.device, 1, 0); }},
    };
    return all;
}

TEST(the_third_call_of_each_kind_fails_and_no_other) {
    for (const Kind& kind : kinds()) {
        Bench bench;
        inject(kind.symbol, 3, 1, CUDA_ERROR_UNKNOWN);
        for (int n = 1; n <= 5; ++n) {
            const CUresult expected = n == 3 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
            if (!CHECK_EQUAL(kind.call(bench), expected)) {
                std::fprintf(stderr, "  call %d of %s\n", n, kind.symbol);
            }
        }
    }
}

TEST(several_calls_in_a_row_fail) {
    Bench bench;
    inject("cuEventRecord", 2, 3, CUDA_ERROR_LAUNCH_FAILED);
    for (int n = 1; n <= 6; ++n) {
        const bool hit = n >= 2 && n <= 4;
        CHECK_EQUAL(cu().cuEventRecord(bench.event, bench.stream),
                    hit ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS);
    }
}

TEST(a_call_that_fails_does_nothing) {
    Bench bench;
    CHECK_EQUAL(cu().cuMemsetD8_v2(bench.device, 1, 64), CUDA_SUCCESS);
    inject("cuMemsetD8_v2", 1, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQUAL(cu().cuMemsetD8_v2(bench.device, 2, 64), CUDA_ERROR_UNKNOWN);
    unsigned char seen = 0;
    CHECK_EQUAL(cu().cuMemcpyDtoH_v2(&seen, bench.device, 1), CUDA_SUCCESS);
    CHECK_EQUAL(int{seen}, 1);
}

TEST(globs_hit_families_of_calls_and_count_across_them) {
    Bench bench;
    inject("cuMemcpy*Async*", 2, 1, CUDA_ERROR_UNKNOWN);
    CHECK_EQUAL(cu().cuMemcpyHtoDAsync_v2(bench.device, bench.host, 8, bench.stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8Async(bench.device, 0, 8, bench.stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemcpyDtoHAsync_v2(bench.host, bench.device, 8, bench.stream),
                CUDA_ERROR_UNKNOWN);
}

TEST(memory_runs_out_at_the_nth_allocation) {
    Bench bench;
    inject("cuMemAlloc_v2", 4, 1, CUDA_ERROR_OUT_OF_MEMORY);
    size_t before = 0, after = 0, total = 0;
    for (int n = 1; n <= 6; ++n) {
        CUdeviceptr pointer = 0;
        CHECK_EQUAL(cu().cuMemGetInfo_v2(&before, &total), CUDA_SUCCESS);
        const CUresult result = cu().cuMemAlloc_v2(&pointer, 4 << 20);
        CHECK_EQUAL(cu().cuMemGetInfo_v2(&after, &total), CUDA_SUCCESS);
        CHECK_EQUAL(result, n == 4 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
        CHECK_EQUAL(before - after, n == 4 ? size_t{0} : size_t{4} << 20);
    }
}

TEST(delays_are_host_time_and_add_up) {
    Bench bench;
    inject("cuEventRecord", 2, 2, 0, 1500);
    inject("cuEvent*", 2, 1, 0, 70);
    const double expected[] = {0, 1570, 3070, 3070};
    for (const double time : expected) {
        CHECK_EQUAL(cu().cuEventRecord(bench.event, bench.stream), CUDA_SUCCESS);
        CHECK_EQUAL(sim().now(), time);
    }
    // What is issued by a late call reaches the card late.
    CHECK_EQUAL(cu().cuStreamSynchronize(bench.stream), CUDA_SUCCESS);
    const double idle = sim().now();
    inject("cuMemcpyHtoDAsync_v2", 1, 1, 0, 5000);
    CHECK_EQUAL(cu().cuMemcpyHtoDAsync_v2(bench.device, bench.host, 4000, bench.stream),
                CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamSynchronize(bench.stream), CUDA_SUCCESS);
    CHECK_EQUAL(sim().now() - idle, 5000 + gpu::kCopyLatency + 1000);
}

TEST(a_late_failure_takes_its_time_too) {
    Bench bench;
    inject("cuEventRecord", 1, 1, CUDA_ERROR_UNKNOWN, 2500);
    CHECK_EQUAL(cu().cuEventRecord(bench.event, bench.stream), CUDA_ERROR_UNKNOWN);
    CHECK_EQUAL(sim().now(), 2500.0);
}

TEST(faults_end_when_cleared_and_with_a_reset) {
    Bench bench;
    inject("cuMemAlloc_v2", 1, 1000, CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_ERROR_OUT_OF_MEMORY);
    sim().clear_faults();
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_SUCCESS);
    inject("*", 1, 1000, CUDA_ERROR_UNKNOWN);
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_ERROR_UNKNOWN);
    Bench again;  // resets
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_SUCCESS);
}

TEST(bad_faults_are_refused) {
    Bench bench;
    CHECK(sim().inject(nullptr, 1, 1, 1, 0) != 0);
    CHECK(sim().inject("cuMemAlloc_v2", 0, 1, 1, 0) != 0);
    CHECK(sim().inject("cuMemAlloc_v2", 1, 0, 1, 0) != 0);
    CHECK(sim().inject("cuMemAlloc_v2", 1, 1, 1, -5) != 0);
    CHECK(sim().lose_device(1, CUDA_ERROR_LAUNCH_FAILED) != 0);
    CHECK(sim().lose_device(-1, CUDA_ERROR_LAUNCH_FAILED) != 0);
    CHECK(sim().lose_device(0, 0) != 0);
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_SUCCESS);
}

TEST(a_lost_device_answers_every_call_with_its_code) {
    Bench bench;
    CHECK_EQUAL(gpu::spin(bench.spin, 1000000, 1, bench.stream), CUDA_SUCCESS);
    CHECK_EQUAL(sim().lose_device(0, CUDA_ERROR_ECC_UNCORRECTABLE), 0);
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQUAL(cu().cuStreamSynchronize(bench.stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQUAL(cu().cuStreamQuery(bench.stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQUAL(cu().cuEventQuery(bench.event), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQUAL(cu().cuMemcpyHtoDAsync_v2(bench.device, bench.host, 8, bench.stream),
                CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_EQUAL(gpu::spin(bench.spin, 1000, 1, bench.stream), CUDA_ERROR_ECC_UNCORRECTABLE);
    // Still there: what is known without the card, and the context itself.
    CUcontext context = nullptr;
    CHECK_EQUAL(cu().cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    int count = 0;
    CHECK_EQUAL(cu().cuDeviceGetCount(&count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 1);
}

TEST(losing_one_device_leaves_the_other) {
    gpu::reset_round("devices=2");
    gpu::use_device(1);
    const CUdeviceptr memory = gpu::make_memory(64);
    gpu::use_device(0);
    CHECK_EQUAL(sim().lose_device(0, CUDA_ERROR_LAUNCH_FAILED), 0);
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_ERROR_LAUNCH_FAILED);
    gpu::use_device(1);
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8_v2(memory, 1, 64), CUDA_SUCCESS);
}

TEST(waits_for_a_value_end_when_the_device_is_lost) {
    Bench bench;
    CHECK_EQUAL(cu().cuStreamWaitValue32_v2(bench.stream, bench.device, 1, CU_STREAM_WAIT_VALUE_EQ),
                CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamQuery(bench.stream), CUDA_ERROR_NOT_READY);
    CHECK_EQUAL(sim().lose_device(0, CUDA_ERROR_LAUNCH_FAILED), 0);
    CHECK_EQUAL(cu().cuStreamSynchronize(bench.stream), CUDA_ERROR_LAUNCH_FAILED);
}

}  // namespace
