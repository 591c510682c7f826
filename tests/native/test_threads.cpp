// Many threads on one simulated GPU: results stay right, and ThreadSanitizer has something to
// watch.
#include <atomic>
#include <functional>
#include <thread>

#include "gpu.h"

namespace {

using gpu::cu;
using gpu::sim;

constexpr int kThreadCount = 6;
const int kRounds = testing::rounds(12, 200);  // of each thread's work
constexpr size_t kWords = 1024;
constexpr size_t kBytes = kWords * 4;

#define CHECK_OK(call) CHECK_EQUAL((call), CUDA_SUCCESS)

// Runs body(thread number) on many threads that share the primary context, all starting together.
void on_threads(CUcontext context, const std::function<void(int)>& body) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreadCount; ++number) {
        threads.emplace_back([&, number] {
            if (context != nullptr) CHECK_OK(cu().cuCtxSetCurrent(context));
            ++ready;
            while (ready < kThreadCount) std::this_thread::yield();
            body(number);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

// Machines on which each of the tests below runs, one reset after the other. Threads issue in any
// order; what the checker says is looked at where it cannot depend on that.
enum class Reports { none, any };

void on_each_machine(const std::function<void(CUcontext)>& body, Reports reports = Reports::none) {
    for (const char* settings : {"", "checker=off", "clock=wall,scale=1000"}) {
        gpu::reset_round(settings);
        body(gpu::use_device());
        CHECK_OK(cu().cuCtxSynchronize());
        if (reports == Reports::none) CHECK_EQUAL(gpu::text_of(sim().reports), "[]");
    }
}

bool all_are(const void* words, unsigned value) {
    const auto* begin = static_cast<const unsigned*>(words);
    for (size_t i = 0; i < kWords; ++i) {
        if (begin[i] != value) return false;
    }
    return true;
}

void set_all(void* words, unsigned value) {
    for (size_t i = 0; i < kWords; ++i) static_cast<unsigned*>(words)[i] = value;
}

// Must stay first: no other test may have made the machine.
TEST(first_calls_of_many_threads_at_once_make_one_machine) {
    on_threads(nullptr, [](int) {
        int count = 0;
        CHECK_OK(cu().cuInit(0));
        CHECK_OK(cu().cuDeviceGetCount(&count));
        CUcontext context = nullptr;
        CHECK_OK(cu().cuDevicePrimaryCtxRetain(&context, 0));
        CHECK_OK(cu().cuCtxSetCurrent(context));
        CHECK_OK(cu().cuCtxSynchronize());
    });
}

TEST(own_streams_and_memory) {
    on_each_machine([](CUcontext context) {
        on_threads(context, [](int number) {
            const CUstream stream = gpu::make_stream();
            for (int round = 0; round < kRounds; ++round) {
                const auto value = static_cast<unsigned>(number * 1000 + round);
                const CUdeviceptr first = gpu::make_memory(kBytes);
                const CUdeviceptr second = gpu::make_memory(kBytes);
                void* in = gpu::make_pinned(kBytes);
                void* out = gpu::make_pinned(kBytes);
                set_all(in, value);
                CHECK_OK(cu().cuMemcpyHtoDAsync_v2(first, in, kBytes, stream));
                CHECK_OK(cu().cuMemcpyDtoDAsync_v2(second, first, kBytes, stream));
                CHECK_OK(cu().cuMemcpyDtoHAsync_v2(out, second, kBytes, stream));
                CHECK_OK(cu().cuStreamSynchronize(stream));
                CHECK(all_are(out, value));
                CHECK_OK(cu().cuMemFreeHost(in));
                CHECK_OK(cu().cuMemFreeHost(out));
                CHECK_OK(cu().cuMemFree_v2(first));
                CHECK_OK(cu().cuMemFree_v2(second));
            }
            CHECK_OK(cu().cuStreamDestroy_v2(stream));
        });
    });
}

TEST(one_stream_and_events_shared_by_all) {
    on_each_machine([](CUcontext context) {
        const CUstream shared = gpu::make_stream();
        const CUdeviceptr memory = gpu::make_memory(kBytes * kThreadCount);
        on_threads(context, [&](int number) {
            const CUdeviceptr own = memory + kBytes * static_cast<unsigned>(number);
            const CUstream stream = gpu::make_stream();
            const CUevent written = gpu::make_event(), read = gpu::make_event();
            void* out = gpu::make_pinned(kBytes);
            for (int round = 0; round < kRounds; ++round) {
                const auto value = static_cast<unsigned>(number * 1000 + round);
                CHECK_OK(cu().cuStreamWaitEvent(shared, read, 0));
                CHECK_OK(cu().cuMemsetD32Async(own, value, kWords, shared));
                CHECK_OK(cu().cuEventRecord(written, shared));
                CHECK_OK(cu().cuStreamWaitEvent(stream, written, 0));
                CHECK_OK(cu().cuMemcpyDtoHAsync_v2(out, own, kBytes, stream));
                CHECK_OK(cu().cuEventRecord(read, stream));
                CHECK_OK(cu().cuEventSynchronize(read));
                CHECK_OK(cu().cuEventQuery(written));
                CHECK(all_are(out, value));
                float milliseconds = -1;
                CHECK_OK(cu().cuEventElapsedTime(&milliseconds, written, read));
                CHECK(milliseconds > 0);
            }
            CHECK_OK(cu().cuMemFreeHost(out));
            CHECK_OK(cu().cuEventDestroy_v2(written));
            CHECK_OK(cu().cuEventDestroy_v2(read));
            CHECK_OK(cu().cuStreamDestroy_v2(stream));
        });
        CHECK_OK(cu().cuMemFree_v2(memory));
    });
}

TEST(host_functions_run_once_each_and_in_order) {
    struct Line {
        std::vector<int> seen;
        int next = 0;
    };
    on_each_machine([](CUcontext context) {
        on_threads(context, [](int) {
            const CUstream stream = gpu::make_stream();
            Line line;
            for (int round = 0; round < kRounds; ++round) {
                for (int i = 0; i < 3; ++i) {
                    CHECK_OK(cu().cuLaunchHostFunc(
                        stream,
                        [](void* data) {
                            Line& mine = *static_cast<Line*>(data);
                            mine.seen.push_back(mine.next++);
                        },
                        &line));
                }
                CHECK_OK(cu().cuStreamSynchronize(stream));
                CHECK_EQUAL(line.seen.size(), static_cast<size_t>(3 * (round + 1)));
            }
            for (size_t i = 0; i < line.seen.size(); ++i) {
                CHECK_EQUAL(line.seen[i], static_cast<int>(i));
            }
            CHECK_OK(cu().cuStreamDestroy_v2(stream));
        });
    });
}

// Even threads produce, odd ones consume; a word of device memory each way keeps them in step. The
// checker knows which write ends a wait only where the write was issued first.
TEST(values_order_streams_of_different_threads) {
    const auto body = [](CUcontext context) {
        const CUdeviceptr memory = gpu::make_memory(kBytes * kThreadCount);
        const CUdeviceptr flags = gpu::make_memory(64 * kThreadCount);
        CHECK_OK(cu().cuMemsetD32_v2(flags, 0, 16 * kThreadCount));
        CHECK_OK(cu().cuCtxSynchronize());
        on_threads(context, [&](int number) {
            const auto pair = static_cast<unsigned>(number / 2);
            const CUdeviceptr bytes = memory + kBytes * pair;
            const CUdeviceptr written = flags + 64 * pair, read = written + 8;
            const CUstream stream = gpu::make_stream();
            std::vector<void*> out;
            for (unsigned round = 1, last = kRounds; round <= last; ++round) {
                if (number % 2 == 0) {
                    CHECK_OK(cu().cuStreamWaitValue32_v2(stream, read, round - 1,
                                                         CU_STREAM_WAIT_VALUE_GEQ));
                    CHECK_OK(cu().cuMemsetD32Async(bytes, round, kWords, stream));
                    CHECK_OK(cu().cuStreamWriteValue32_v2(stream, written, round, 0));
                } else {
                    out.push_back(gpu::make_pinned(kBytes));
                    CHECK_OK(cu().cuStreamWaitValue32_v2(stream, written, round,
                                                         CU_STREAM_WAIT_VALUE_GEQ));
                    CHECK_OK(cu().cuMemcpyDtoHAsync_v2(out.back(), bytes, kBytes, stream));
                    CHECK_OK(cu().cuStreamWriteValue32_v2(stream, read, round, 0));
                }
            }
            CHECK_OK(cu().cuStreamSynchronize(stream));
            for (unsigned i = 0; i < out.size(); ++i) CHECK(all_are(out[i], i + 1));
            CHECK_OK(cu().cuStreamDestroy_v2(stream));
        });
    };
    on_each_machine(body, Reports::any);
}

TEST(a_host_store_ends_a_wait_for_a_value) {
    on_each_machine([](CUcontext context) {
        on_threads(context, [](int) {
            const CUstream stream = gpu::make_stream();
            auto* flag = static_cast<std::uint32_t*>(gpu::make_pinned(64));
            for (std::uint32_t round = 1, last = kRounds; round <= last; ++round) {
                CHECK_OK(cu().cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(flag),
                                                     round, CU_STREAM_WAIT_VALUE_EQ));
                CHECK_EQUAL(cu().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
                __atomic_store_n(flag, round, __ATOMIC_RELEASE);
                CHECK_OK(cu().cuStreamSynchronize(stream));
            }
            CHECK_OK(cu().cuMemFreeHost(flag));
            CHECK_OK(cu().cuStreamDestroy_v2(stream));
        });
    });
}

TEST(contexts_are_each_threads_own_business) {
    on_each_machine([](CUcontext primary) {
        on_threads(primary, [&](int) {
            for (int round = 0; round < kRounds; ++round) {
                CUcontext made = nullptr, current = nullptr, popped = nullptr;
                CHECK_OK(cu().cuCtxCreate_v2(&made, 0, 0));
                const CUdeviceptr memory = gpu::make_memory(kBytes);
                CHECK_OK(cu().cuMemsetD32_v2(memory, 1, kWords));
                CHECK_OK(cu().cuCtxSynchronize());
                CHECK_OK(cu().cuCtxPushCurrent_v2(primary));
                CHECK_OK(cu().cuCtxGetCurrent(&current));
                CHECK(current == primary);
                CHECK_OK(cu().cuCtxPopCurrent_v2(&popped));
                CHECK(popped == primary);
                CHECK_OK(cu().cuCtxGetCurrent(&current));
                CHECK(current == made);
                CHECK_OK(cu().cuCtxDestroy_v2(made));
                CHECK_OK(cu().cuCtxGetCurrent(&current));
                CHECK(current == primary);
            }
        });
    });
}

// What a program must not do, and may do by mistake: the waiting thread gets an error.
TEST(context_destroyed_under_a_thread_that_waits) {
    for (const bool legacy : {false, true}) {
        for (const char* settings : {"", "clock=wall"}) {
            gpu::reset_round(settings);
            gpu::use_device();
            CUcontext context = nullptr;
            CHECK_OK(cu().cuCtxCreate_v2(&context, 0, 0));
            const CUstream stream = legacy ? VRAMKIT_STREAM_LEGACY : gpu::make_stream();
            const auto flag = reinterpret_cast<CUdeviceptr>(gpu::make_pinned(64));
            CHECK_OK(cu().cuStreamWaitValue32_v2(stream, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
            std::thread waiter([&] {
                CHECK_OK(cu().cuCtxSetCurrent(context));
                CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
            });
            // A call is counted under the lock that it gives up only to wait.
            while (gpu::text_of(sim().call_counts).find("cuStreamSynchronize") ==
                   std::string::npos) {
                std::this_thread::yield();
            }
            CHECK_OK(cu().cuCtxDestroy_v2(context));
            waiter.join();
        }
    }
}

// Threads that only look, and threads that wait for everything, beside threads that work.
TEST(looking_and_waiting_beside_work) {
    on_each_machine([](CUcontext context) {
        std::atomic<int> working{kThreadCount - 2};
        on_threads(context, [&](int number) {
            if (number == 0) {
                while (working > 0) {
                    CHECK(sim().now() >= 0);
                    gpu::text_of(sim().reports);
                    gpu::text_of(sim().call_counts);
                    gpu::text_of(sim().live_objects);
                    gpu::text_of(sim().timeline);
                    sim().advance(10);
                }
            } else if (number == 1) {
                while (working > 0) {
                    CHECK_OK(cu().cuCtxSynchronize());
                    CHECK_OK(cu().cuStreamSynchronize(VRAMKIT_STREAM_LEGACY));
                    const CUresult state = cu().cuStreamQuery(VRAMKIT_STREAM_LEGACY);
                    CHECK(state == CUDA_SUCCESS || state == CUDA_ERROR_NOT_READY);
                    size_t free = 0, total = 0;
                    CHECK_OK(cu().cuMemGetInfo_v2(&free, &total));
                    CHECK(free <= total);
                }
            } else {
                std::atomic<int> calls{0};
                for (int round = 0; round < kRounds; ++round) {
                    // Blocking streams that come and go under the legacy stream's wait.
                    const CUstream stream = gpu::make_stream(CU_STREAM_DEFAULT);
                    const CUdeviceptr memory = gpu::make_memory(kBytes);
                    CHECK_OK(cu().cuMemsetD32Async(memory, 1, kWords, stream));
                    CHECK_OK(cu().cuLaunchHostFunc(
                        stream,
                        [](void* data) {
                            std::this_thread::yield();
                            ++*static_cast<std::atomic<int>*>(data);
                        },
                        &calls));
                    CHECK_OK(cu().cuMemsetD32Async(memory, 2, kWords, stream));
                    CHECK_OK(cu().cuStreamSynchronize(stream));
                    CHECK_OK(cu().cuStreamDestroy_v2(stream));
                    CHECK_EQUAL(calls.load(), round + 1);
                    CHECK_OK(cu().cuMemFree_v2(memory));
                }
                --working;
            }
        });
    });
}

// Whatever they hold is gone after a reset: calls fail, nothing crashes or hangs.
TEST(resets_under_running_threads) {
    gpu::reset_round();
    gpu::use_device();
    std::atomic<bool> over{false};
    std::atomic<int> successes{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreadCount; ++number) {
        threads.emplace_back([&] {
            std::vector<unsigned> bytes(kWords);
            while (!over) {
                CUcontext context = nullptr;
                CUstream stream = nullptr;
                CUdeviceptr memory = 0;
                if (cu().cuInit(0) != CUDA_SUCCESS ||
                    cu().cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
                    cu().cuCtxSetCurrent(context) != CUDA_SUCCESS ||
                    cu().cuStreamCreateWithPriority(&stream, 0, 0) != CUDA_SUCCESS ||
                    cu().cuMemAlloc_v2(&memory, kBytes) != CUDA_SUCCESS) {
                    continue;
                }
                cu().cuMemsetD32Async(memory, 1, kWords, stream);
                cu().cuLaunchHostFunc(stream, [](void*) {}, nullptr);
                cu().cuMemcpyDtoHAsync_v2(bytes.data(), memory, kBytes, stream);
                successes += cu().cuStreamSynchronize(stream) == CUDA_SUCCESS;
                cu().cuMemFree_v2(memory);
                cu().cuStreamDestroy_v2(stream);
            }
        });
    }
    for (int i = 0; i < 20; ++i) {
        const int before = successes;
        while (successes < before + 10) std::this_thread::yield();
        gpu::reset_round(i % 2 == 0 ? "checker=off" : "");
    }
    over = true;
    for (std::thread& thread : threads) thread.join();
    CHECK(successes >= 200);
}

}  // namespace
