// Ends of processes: after fork, at exit with work pending, and the file of reports.
//
// The simulated GPU lives in children only: this process stays single-threaded, so that each
// scenario starts from a clean one.
#include <atomic>
#include <sstream>
#include <thread>

#include "children.h"
#include "gpu.h"

namespace {

namespace fs = gpu::fs;
using gpu::cu;
using gpu::sim;

using children::exited_well;
using children::kSecondsToLive;
using children::status_of;

std::string contents(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
}

TEST(calls_after_fork_are_refused_in_the_child_and_served_in_the_parent) {
    CHECK(exited_well(status_of([] {
        gpu::reset_round();
        gpu::use_device();
        const CUdeviceptr memory = gpu::make_memory(64);
        CHECK(exited_well(status_of([&] {
            int count = 0;
            CUdeviceptr pointer = 0;
            CHECK_EQUAL(cu().cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
            CHECK_EQUAL(cu().cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
            CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, 64), CUDA_ERROR_NOT_INITIALIZED);
            CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_ERROR_NOT_INITIALIZED);
            CHECK_EQUAL(cu().cuStreamSynchronize(nullptr), CUDA_ERROR_NOT_INITIALIZED);
        })));
        CHECK_EQUAL(cu().cuMemFree_v2(memory), CUDA_SUCCESS);
    })));
}

// A lock that another thread held at the fork would stay shut in the child for ever.
TEST(fork_beside_busy_threads_does_not_hang_the_child) {
    CHECK(exited_well(status_of([] {
        gpu::reset_round();
        const CUcontext context = gpu::use_device();
        std::atomic<bool> over{false};
        std::thread busy([&] {
            CHECK_EQUAL(cu().cuCtxSetCurrent(context), CUDA_SUCCESS);
            while (!over) CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
        });
        for (int i = 0; i < 20; ++i) {
            const pid_t child = ::fork();
            if (child == 0) {
                ::alarm(kSecondsToLive);
                const bool refused = cu().cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED;
                sim().now();
                ::_exit(refused ? 0 : 1);
            }
            int status = -1;
            CHECK(::waitpid(child, &status, 0) == child);
            CHECK(exited_well(status));
        }
        over = true;
        busy.join();
    })));
}

TEST(reports_are_written_at_exit) {
    const gpu::Folder folder;
    const fs::path file = folder.path / "reports.json";
    CHECK(exited_well(status_of([&] {
        gpu::reset_round("reports=" + file.string());
        gpu::use_device();
        const CUdeviceptr memory = gpu::make_memory(4096);
        // Two streams write the same bytes, and nothing orders them.
        CHECK_EQUAL(cu().cuMemsetD8Async(memory, 1, 4096, gpu::make_stream()), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuMemsetD8Async(memory, 2, 4096, gpu::make_stream()), CUDA_SUCCESS);
    })));
    std::vector<fs::path> written;
    for (const auto& entry : fs::directory_iterator(folder.path)) written.push_back(entry.path());
    REQUIRE(written.size() == 1);
    CHECK(written[0].string().starts_with(file.string() + "."));  // then the process id
    const std::string text = contents(written[0]);
    CHECK(text.find("\"kind\":\"race\"") != std::string::npos);
    CHECK(text.find("cuMemsetD8Async") != std::string::npos);
}

TEST(a_forked_child_writes_no_reports) {
    const gpu::Folder folder;
    CHECK(exited_well(status_of([&] {
        gpu::reset_round("reports=" + (folder.path / "reports.json").string());
        gpu::use_device();
        const auto files = [&] {
            return std::distance(fs::directory_iterator(folder.path), fs::directory_iterator());
        };
        CHECK_EQUAL(files(), 1);  // the parent's: it is renewed as reports come
        CHECK(exited_well(status_of([] {})));
        CHECK_EQUAL(files(), 1);
    })));
}

TEST(host_functions_pending_at_exit_neither_crash_nor_hang) {
    for (const char* clock : {"clock=virtual", "clock=wall,scale=1000000"}) {
        CHECK(exited_well(status_of([&] {
            gpu::reset_round(clock);
            gpu::use_device();
            static std::atomic<bool> entered{false};
            const CUstream stream = gpu::make_stream();
            for (int i = 0; i < 3; ++i) {
                CHECK_EQUAL(cu().cuLaunchHostFunc(
                                stream,
                                [](void*) {
                                    entered = true;
                                    for (;;) ::pause();
                                },
                                nullptr),
                            CUDA_SUCCESS);
            }
            // Exit while one runs and two wait.
            while (!entered) std::this_thread::yield();
        })));
    }
}

TEST(work_pending_at_exit_neither_crashes_nor_hangs) {
    CHECK(exited_well(status_of([] {
        gpu::reset_round();
        gpu::use_device();
        const CUstream stream = gpu::make_stream(), other = gpu::make_stream();
        const CUdeviceptr memory = gpu::make_memory(1 << 20);
        const CUevent event = gpu::make_event();
        CHECK_EQUAL(cu().cuStreamWaitValue32_v2(stream, memory, 1, CU_STREAM_WAIT_VALUE_EQ),
                    CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuMemsetD8Async(memory + 64, 1, 4096, stream), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuEventRecord(event, stream), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuLaunchHostFunc(other, [](void*) {}, nullptr), CUDA_SUCCESS);
    })));
}

TEST(reset_drops_pending_work_and_host_functions) {
    CHECK(exited_well(status_of([] {
        gpu::reset_round();
        gpu::use_device();
        static std::atomic<int> runs{0};
        const CUstream stream = gpu::make_stream();
        const CUdeviceptr memory = gpu::make_memory(4096);
        CHECK_EQUAL(cu().cuStreamWaitValue32_v2(stream, memory, 1, CU_STREAM_WAIT_VALUE_EQ),
                    CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuLaunchHostFunc(stream, [](void*) { ++runs; }, nullptr), CUDA_SUCCESS);
        gpu::reset_round();
        gpu::use_device();
        CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
        CHECK_EQUAL(runs.load(), 0);
    })));
}

TEST(bad_settings_in_the_environment_refuse_every_call) {
    CHECK(exited_well(status_of([] {
        ::setenv("VRAMKIT_SIM", "clock=sundial", 1);
        ::close(STDERR_FILENO);  // where the reason goes
        CHECK_EQUAL(cu().cuInit(0), CUDA_ERROR_INVALID_VALUE);
        CHECK_EQUAL(cu().cuInit(0), CUDA_ERROR_INVALID_VALUE);
    })));
}

TEST(settings_in_the_environment_are_read_on_first_use) {
    CHECK(exited_well(status_of([] {
        ::setenv("VRAMKIT_SIM", "devices=3,capacity=64MiB", 1);
        int count = 0;
        CHECK_EQUAL(cu().cuInit(0), CUDA_SUCCESS);
        CHECK_EQUAL(cu().cuDeviceGetCount(&count), CUDA_SUCCESS);
        CHECK_EQUAL(count, 3);
    })));
}

}  // namespace
