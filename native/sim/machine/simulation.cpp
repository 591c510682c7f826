// The one simulation of the process: how it comes about, and how its machine is replaced.
#include "sim/machine/simulation.h"

#include <pthread.h>
#include <time.h>

#include <cstdlib>
#include <utility>

#include "sim/checker/reports.h"
#include "sim/time/background.h"

namespace vramkit::sim {
namespace {

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * std::int64_t{1000000000} + now.tv_nsec;
}

std::shared_ptr<Machine> make_machine(std::string_view text, std::string& error) {
    auto parsed = parse_settings(text);
    if (const std::string* wrong = std::get_if<std::string>(&parsed)) {
        error = *wrong;
        return nullptr;
    }
    Settings& settings = std::get<Settings>(parsed);
    // A program that resets the simulated GPU while it is being checked is still being checked:
    // where reports go, and with which stacks, is the environment's to say.
    const char* environment = std::getenv("VRAMKIT_SIM");
    if (settings.reports.empty() && environment != nullptr) {
        const auto outer = parse_settings(environment);
        if (const Settings* given = std::get_if<Settings>(&outer); given != nullptr) {
            settings.reports = given->reports;
            if (!given->reports.empty()) settings.stacks = given->stacks;
        }
    }
    if (!settings.reports.empty()) error = refuse_report_path(settings.reports);
    return error.empty() ? Machine::make(std::move(settings), error) : nullptr;
}

void write_reports(const Simulation& all) {
    if (all.machine != nullptr && !all.machine->settings.reports.empty()) {
        write_report_file(*all.machine, all.generation);
    }
}

// Swaps the machine in; the former one comes back in its place.
void install(Simulation& all, std::shared_ptr<Machine>& machine) {
    write_reports(all);
    all.machine.swap(machine);
    if (machine != nullptr) {
        machine->core().stop();
        // At once: calls that wait may keep the former machine for a while.
        if (machine->card != nullptr) machine->card->leave();
    }
    ++all.generation;
    all.stacks = all.machine->settings.stacks;
    all.wall_start_ns = monotonic_ns();
    if (all.machine->card != nullptr) all.machine->card->begin(all.wall_start_ns);
    if (all.machine->settings.wall_clock) start_background(all);
    all.changed.notify_all();
}

void write_reports_at_exit() {
    Simulation& all = simulation();
    if (all.forked) return;
    const std::lock_guard guard(all.lock);
    all.exiting = true;
    write_reports(all);
    if (all.machine != nullptr && all.machine->card != nullptr) all.machine->card->leave();
}

}  // namespace

Simulation& simulation() {
    static Simulation& all = [&]() -> Simulation& {
        Simulation& made = *std::make_unique<Simulation>().release();
        // Forks wait for the lock: a child must not inherit it shut by a thread that it has not
        // got.
        pthread_atfork([] { simulation().lock.lock(); }, [] { simulation().lock.unlock(); },
                       [] {
                           Simulation& here = simulation();
                           // A driver that was not initialised before the fork may be used in it.
                           here.forked = here.machine != nullptr && here.machine->initialised;
                           here.machine = nullptr;
                           here.background_started = false;
                           here.lock.unlock();
                       });
        std::atexit(write_reports_at_exit);
        return made;
    }();
    return all;
}

double wall_now(const Machine& machine) {
    const std::int64_t passed = monotonic_ns() - simulation().wall_start_ns;
    return static_cast<double>(passed) * machine.settings.scale;
}

ThreadState& thread_state() {
    thread_local ThreadState state;
    return state;
}

void run_callbacks(const DueCallbacks& callbacks) {
    ThreadState& thread = thread_state();
    const bool before = std::exchange(thread.in_host_function, true);
    for (const DestroyCallback& callback : callbacks) callback.function(callback.data);
    thread.in_host_function = before;
}

std::string reset(std::string_view text) {
    std::string error;
    auto machine = make_machine(text, error);
    if (machine == nullptr) return error;
    const std::lock_guard guard(simulation().lock);
    // Destroyed after the lock is let go of: calls that wait on the former machine hold on to it.
    install(simulation(), machine);
    return "";
}

Machine* ensure_machine(std::unique_lock<std::mutex>& lock, std::string& error) {
    Simulation& all = simulation();
    if (all.machine == nullptr) {
        const char* text = std::getenv("VRAMKIT_SIM");
        lock.unlock();
        auto machine = make_machine(text != nullptr ? text : "", error);
        lock.lock();
        // Another thread may have been faster.
        if (machine != nullptr && all.machine == nullptr) install(all, machine);
    }
    return all.machine.get();
}

}  // namespace vramkit::sim
