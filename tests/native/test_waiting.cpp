// Programs that wait for the card without a driver call: what runs meanwhile, and at which time.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "gpu.h"

namespace {

using gpu::cu;
using gpu::sim;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr double kHostFunction = 300;  // of the round card
// A program without calls for so long counts as waiting, whatever its threads do.
constexpr milliseconds kQuiet{50};

#if defined(__SANITIZE_THREAD__)
// A thread of the sanitizer's own sleeps for a time again and again: the program never looks
// asleep.
constexpr bool kThreadsTell = false;
#else
constexpr bool kThreadsTell = true;
#endif

// A host function that says when it has run.
class Signal {
  public:
    Signal() = default;
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;
    // The function may be on its way out.
    ~Signal() { cu().cuCtxSynchronize(); }

    CUresult launch(CUstream stream) {
        return cu().cuLaunchHostFunc(
            stream, [](void* signal) { static_cast<Signal*>(signal)->set(); }, this);
    }
    bool is_set() const { return set_; }
    // Makes no driver call. False: it has not run for a time that is out of all proportion.
    bool wait() { return done_.get_future().wait_for(seconds(20)) == std::future_status::ready; }

  private:
    void set() {
        set_ = true;
        done_.set_value();
    }
    std::atomic<bool> set_{false};
    std::promise<void> done_;
};

TEST(host_functions_run_at_their_time_while_the_program_only_waits) {
    for (int life = 0; life < 2; ++life) {
        gpu::reset_round();
        gpu::use_device();
        const CUstream stream = gpu::make_stream();
        for (int i = 1; i <= 10; ++i) {
            Signal signal;
            CHECK_EQUAL(signal.launch(stream), CUDA_SUCCESS);
            REQUIRE(signal.wait());
            CHECK_EQUAL(sim().now(), i * kHostFunction);
        }
    }
}

// Time without calls alone does not tell a program that waits: a thread of it may look at
// something now and then, as the pool's background thread does.
TEST(thread_that_calls_now_and_then_keeps_no_host_function_from_running) {
    if (!kThreadsTell) return;
    gpu::reset_round();
    const CUcontext context = gpu::use_device();
    std::mutex lock;
    std::condition_variable ended;
    bool end = false;
    std::thread caller([&] {
        std::unique_lock guard(lock);
        CHECK_EQUAL(cu().cuCtxSetCurrent(context), CUDA_SUCCESS);
        CUcontext current = nullptr;
        while (!ended.wait_for(guard, milliseconds(5), [&] { return end; })) {
            CHECK_EQUAL(cu().cuCtxGetCurrent(&current), CUDA_SUCCESS);
        }
    });
    Signal signal;
    CHECK_EQUAL(signal.launch(gpu::make_stream()), CUDA_SUCCESS);
    CHECK(signal.wait());
    {
        const std::lock_guard guard(lock);
        end = true;
    }
    ended.notify_all();
    caller.join();
    CHECK_EQUAL(cu().cuCtxSynchronize(), CUDA_SUCCESS);
}

// A program that goes on by itself, and then makes its next call, sees the time of its calls.
void check_time_stands_still(void (*pass)(milliseconds)) {
    for (int attempt = 0; attempt < 20; ++attempt) {
        gpu::reset_round();
        gpu::use_device();
        const CUstream stream = gpu::make_stream();
        const auto begin = steady_clock::now();
        Signal signal;
        CHECK_EQUAL(signal.launch(stream), CUDA_SUCCESS);
        pass(milliseconds(5));
        const bool ran = signal.is_set();
        const double now = sim().now();
        const bool quick = steady_clock::now() - begin < kQuiet - milliseconds(10);
        CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
        // On a busy machine it may have taken so long that it counted as waiting.
        if (!quick) continue;
        CHECK(!ran);
        CHECK_EQUAL(now, 0);
        return;
    }
}

TEST(time_stands_still_while_the_program_computes) {
    check_time_stands_still([](milliseconds time) {
        const auto end = steady_clock::now() + time;
        while (steady_clock::now() < end) {
        }
    });
}

TEST(time_stands_still_while_the_program_sleeps_for_a_time) {
    check_time_stands_still([](milliseconds time) { std::this_thread::sleep_for(time); });
}

// The program writes a word that a stream waits for: no call tells the card.
TEST(work_behind_a_value_that_the_host_wrote_begins) {
    gpu::reset_round();
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    auto* word = static_cast<unsigned*>(gpu::make_pinned(4));
    *word = 0;
    const auto address = reinterpret_cast<CUdeviceptr>(word);
    CHECK_EQUAL(cu().cuStreamWaitValue32_v2(stream, address, 1, CU_STREAM_WAIT_VALUE_EQ),
                CUDA_SUCCESS);
    CHECK_EQUAL(gpu::spin(gpu::kernel("vk_spin"), 1000, 1, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    *word = 1;
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(sim().now(), gpu::kLaunchLatency + 1000);
}

TEST(host_function_behind_a_value_that_the_host_wrote_runs) {
    for (const char* clock : {"clock=virtual", "clock=wall"}) {
        gpu::reset_round(clock);
        gpu::use_device();
        const CUstream stream = gpu::make_stream();
        auto* word = static_cast<unsigned*>(gpu::make_pinned(4));
        *word = 0;
        const auto address = reinterpret_cast<CUdeviceptr>(word);
        CHECK_EQUAL(cu().cuStreamWaitValue32_v2(stream, address, 1, CU_STREAM_WAIT_VALUE_EQ),
                    CUDA_SUCCESS);
        Signal signal;
        CHECK_EQUAL(signal.launch(stream), CUDA_SUCCESS);
        __atomic_store_n(word, 1u, __ATOMIC_RELEASE);
        CHECK(signal.wait());
        CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    }
}

}  // namespace
