// The thread that runs what the program left to it and keeps clocks going while the program makes
// no calls.
#include "sim/time/background.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "sim/time/program_threads.h"

namespace vramkit::sim {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A program that has made no call for so long may be waiting for a host function or a value, even
// where its threads do not show it: one may look at a flag again and again.
constexpr milliseconds kQuiet{50};
// How soon after a call the program's threads are looked at, and how seldom in the end: the pauses
// double while the program goes on by itself.
constexpr microseconds kFirstLook{30};
constexpr milliseconds kLastLook{5};
// How often words that operations wait for are read where no call tells of a change.
constexpr milliseconds kValueLook{1};
constexpr duration<double> kLongestSleep{3600};  // a longer one may not fit the system's clock

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

// The wall clock: moves the simulation along, and sleeps until the card has something to do.
void keep_wall_clock(Simulation& all, const std::shared_ptr<Machine>& machine,
                     std::unique_lock<std::mutex>& lock) {
    Core& core = machine->core();
    core.look_at_values();
    while (core.step(wall_now(*machine))) {
        run_host_functions(all, lock);
        run_due_callbacks(all, lock);
    }
    all.changed.notify_all();
    // The lock was free in between: something may be there to do that nobody will announce again.
    if (all.machine != machine || !machine->host_functions.empty() || machine->user_objects.due()) {
        return;
    }
    double wait_s = (core.next() - wall_now(*machine)) / machine->settings.scale * 1e-9;
    if (core.waiting_for_value() != nullptr) {
        wait_s = std::min(wait_s, duration<double>(kValueLook).count());
    }
    if (wait_s == kNever) {
        all.changed.wait(lock);
    } else if (wait_s > 0) {
        all.changed.wait_for(lock, std::min(duration<double>(wait_s), kLongestSleep));
    }
}

// The virtual clock: time moves with the program's calls. A program that waits for a host function
// or a value without a call would wait for ever, so the simulation runs on to it, once the program
// is known to wait. Whether it does so depends on what its threads do, not on how long they take.
class VirtualClock {
  public:
    void keep(Simulation& all, const std::shared_ptr<Machine>& machine,
              std::unique_lock<std::mutex>& lock) {
        if (!machine->host_may_wait()) {
            all.changed.wait(lock);
            return;
        }
        if (all.calls != calls_) hear(all.calls);
        all.changed.wait_for(lock, pause_);
        const auto same = [&] { return all.calls == calls_ && all.machine == machine; };
        if (!same()) return;
        lock.unlock();
        const bool waits = program_waits();
        lock.lock();
        if (!same()) return;
        if (waits || steady_clock::now() - quiet_since_ >= kQuiet) {
            if (run_on(*machine)) return hear(calls_);
        }
        // Where all wait and nothing can happen, somebody outside must act first.
        pause_ = std::min<steady_clock::duration>(2 * pause_, waits ? kQuiet : kLastLook);
    }

  private:
    // The program, or what it may wait for, has moved on.
    void hear(std::uint64_t calls) {
        calls_ = calls;
        quiet_since_ = steady_clock::now();
        pause_ = kFirstLook;
    }

    // Up to the next thing that the host may wait for. False: nothing is left that can happen.
    static bool run_on(Machine& machine) {
        const int before = machine.host_visible;
        const auto shown = [&] {
            return machine.host_visible != before || !machine.host_functions.empty() ||
                   machine.user_objects.due();
        };
        machine.core().look_at_values();
        while (!shown() && machine.core().step(kNever)) {
        }
        return shown();
    }

    std::uint64_t calls_ = 0;
    steady_clock::time_point quiet_since_ = steady_clock::now();
    steady_clock::duration pause_ = kFirstLook;
};

// Runs host functions and callbacks of user objects, and keeps the clock.
void background(Simulation& all) {
    std::unique_lock lock(all.lock);
    VirtualClock clock;
    for (;;) {
        run_host_functions(all, lock);
        run_due_callbacks(all, lock);
        const std::shared_ptr<Machine> machine = all.machine;
        if (machine == nullptr) {
            all.changed.wait(lock);
        } else if (machine->settings.wall_clock) {
            keep_wall_clock(all, machine, lock);
        } else {
            clock.keep(all, machine, lock);
        }
    }
}

}  // namespace

void start_background(Simulation& all) {
    if (all.background_started) return;
    all.background_started = true;
    std::thread([&all] { background(all); }).detach();
}

}  // namespace vramkit::sim
