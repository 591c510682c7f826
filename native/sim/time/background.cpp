// The thread that runs what the program left to it and keeps clocks going while the program makes
// no calls.
#include "sim/time/background.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace vramkit::sim {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// A program that has made no call for so long may be waiting for a host function or a value.
constexpr milliseconds kQuiet{50};

void run_host_functions(Simulation& all, std::unique_lock<std::mutex>& lock) {
    const std::shared_ptr<Machine> machine = all.machine;
    // A reset forgets those that have not begun.
    while (machine != nullptr && machine == all.machine && !machine->host_functions.empty()) {
        Operation* operation = machine->host_functions.front();
        machine->host_functions.pop_front();
        const bool lost = machine->lost(*operation);
        const auto function = operation->function;
        const auto callback = operation->callback;
        void* data = operation->data;
        auto* stream = reinterpret_cast<CUstream>(operation->stream.get());
        const CUresult status = operation->stream->context->error;
        lock.unlock();
        thread_state().in_host_function = true;
        if (callback != nullptr) {
            callback(stream, status, data);
        } else if (!lost) {
            function(data);
        }
        thread_state().in_host_function = false;
        lock.lock();
        --machine->host_functions_out;
        machine->host_functions_slow =
            std::min(machine->host_functions_slow, machine->host_functions_out);
        machine->core().host_function_returned(operation);
        all.changed.notify_all();
    }
}

void run_due_callbacks(Simulation& all, std::unique_lock<std::mutex>& lock) {
    if (all.machine == nullptr || !all.machine->user_objects.due()) return;
    const DueCallbacks due = all.machine->take_due_callbacks();
    lock.unlock();
    run_callbacks(due);
    lock.lock();
}

// Runs host functions and callbacks of user objects; with the wall clock, moves the simulation
// along; with the virtual one, does so only where the host may be waiting for one of those or a
// value without calling the driver.
void background(Simulation& all) {
    std::unique_lock lock(all.lock);
    std::uint64_t calls_before = 0;
    for (;;) {
        run_host_functions(all, lock);
        run_due_callbacks(all, lock);
        const std::shared_ptr<Machine> machine = all.machine;
        if (machine != nullptr && machine->settings.wall_clock) {
            while (machine->core().step(wall_now(*machine))) {
                run_host_functions(all, lock);
                run_due_callbacks(all, lock);
            }
            all.changed.notify_all();
            const double wait_ns =
                (machine->core().next() - wall_now(*machine)) / machine->settings.scale;
            all.changed.wait_for(lock, duration<double>(std::clamp(wait_ns * 1e-9, 0.0, 0.05)));
            continue;
        }
        if (machine == nullptr || !machine->host_may_wait()) {
            all.changed.wait(lock);
            continue;
        }
        const std::uint64_t seen = all.calls;
        all.changed.wait_for(lock, kQuiet);
        if (all.calls != seen || seen != calls_before) {
            calls_before = all.calls;
            continue;
        }
        const int before = machine->host_visible;
        while (machine->host_visible == before && machine->host_functions.empty() &&
               !machine->user_objects.due() && machine->core().step(kNever)) {
        }
        machine->core().look_at_values();
    }
}

}  // namespace

void start_background(Simulation& all) {
    if (all.background_started) return;
    all.background_started = true;
    std::thread([&all] { background(all); }).detach();
}

}  // namespace vramkit::sim
