// Threads for calls that block, and the handling of signals in the meantime.
#include "bindings/wait.h"

#include <nanobind/nanobind.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace nb = nanobind;

namespace vramkit {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kSignalsEvery{20};
constexpr milliseconds kSpin{1};
constexpr milliseconds kLongestPause{1};
constexpr std::chrono::microseconds kSpinElsewhere{20};
constexpr milliseconds kPerhapsDeadlock{100};

thread_local bool calls_stay_here = false;

bool on_main_thread() {
    thread_local const bool main = getpid() == gettid();
    return main;
}

// Threads that wait for work; one more is started where all are busy. Never destroyed: a call may
// still block in one of them while the process exits.
class Workers {
  public:
    static Workers& all() {
        static Workers& made = *std::make_unique<Workers>().release();
        return made;
    }

    void add(std::function<void()> work) {
        const std::lock_guard guard(lock_);
        if (queue_.size() >= idle_) start();
        queue_.push_back(std::move(work));
        changed_.notify_one();
    }

  private:
    void start() {
        std::thread([this] { serve(); }).detach();
        ++idle_;
    }

    void serve() {
        // Signals are for the main thread.
        sigset_t every;
        sigfillset(&every);
        pthread_sigmask(SIG_SETMASK, &every, nullptr);
        std::unique_lock guard(lock_);
        for (;;) {
            changed_.wait(guard, [this] { return !queue_.empty(); });
            std::function<void()> work = std::move(queue_.front());
            queue_.pop_front();
            --idle_;
            guard.unlock();
            work();
            work = nullptr;
            guard.lock();
            ++idle_;
        }
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    std::size_t idle_ = 0;
};

// A call on its way through a worker. `result` may be read when it is done.
struct Completion {
    std::mutex lock;
    std::condition_variable changed;
    std::atomic<bool> done{false};
    CallResult result{CUDA_SUCCESS, nullptr};

    void finish() {
        const std::lock_guard guard(lock);
        done = true;
        changed.notify_one();
    }
    // True if it is done in time.
    bool wait() {
        // A call that has nothing to wait for is over before this thread would be asleep.
        const auto until = steady_clock::now() + kSpinElsewhere;
        while (!done && steady_clock::now() < until) std::this_thread::yield();
        std::unique_lock guard(lock);
        return changed.wait_for(guard, kSignalsEvery, [this] { return done.load(); });
    }
};

// The thread state that a driver call depends on: the context and the capture mode.
struct ThreadState {
    CUcontext context = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    CallResult read(Device& device) {
        const CUresult found = device.context(&context);
        if (found != CUDA_SUCCESS) return {found, "cuDevicePrimaryCtxRetain"};
        const DriverTable& call = device.call();
        const CUresult asked = call.cuThreadExchangeStreamCaptureMode(&mode);
        if (asked != CUDA_SUCCESS) return {asked, "cuThreadExchangeStreamCaptureMode"};
        CUstreamCaptureMode before = mode;
        return {call.cuThreadExchangeStreamCaptureMode(&before),
                "cuThreadExchangeStreamCaptureMode"};
    }
    CallResult apply(const DriverTable& call) {
        const CUresult set = call.cuCtxSetCurrent(context);
        if (set != CUDA_SUCCESS) return {set, "cuCtxSetCurrent"};
        return {call.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode"};
    }
};

void handle_signals() {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void pause_after(steady_clock::duration waited) {
    if (waited < kSpin) {
        std::this_thread::yield();
    } else {
        std::this_thread::sleep_for(std::min<steady_clock::duration>(waited / 64, kLongestPause));
    }
}

}  // namespace

bool is_interruptible(const Session& session) {
    return on_main_thread() && !calls_stay_here && session.waits_in_real_time();
}

void set_calls_stay_here(bool on) { calls_stay_here = on; }

CallResult call_elsewhere(Device& device, std::function<CUresult()> call, const char* symbol) {
    device.session().require_own_process();
    ThreadState state;
    {
        const GilReleased released;
        const CallResult read = state.read(device);
        if (read.result != CUDA_SUCCESS) return read;
    }
    const auto completion = std::make_shared<Completion>();
    Workers::all().add([=, driver = device.session().shared_driver()]() mutable {
        completion->result = state.apply(driver->call());
        if (completion->result.result == CUDA_SUCCESS) completion->result = {call(), symbol};
        completion->finish();
    });
    for (;;) {
        {
            const GilReleased released;
            if (completion->wait()) return completion->result;
        }
        handle_signals();
    }
}

bool poll(Device& device, const std::function<CUresult()>& query) {
    device.session().require_own_process();
    const auto start = steady_clock::now();
    auto handled = start;
    for (;;) {
        {
            const GilReleased released;
            const ContextScope scope(device);
            if (scope.result() != CUDA_SUCCESS) return true;  // the call itself says why
            for (;;) {
                if (query() != CUDA_ERROR_NOT_READY) return true;
                const auto now = steady_clock::now();
                if (now - handled >= kSignalsEvery) {
                    handled = now;
                    break;
                }
                pause_after(now - start);
            }
        }
        handle_signals();
        if (device.session().simulated() && handled - start >= kPerhapsDeadlock) {
            return false;
        }
    }
}

}  // namespace vramkit
