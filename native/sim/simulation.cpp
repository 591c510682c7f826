// Host clocks, waiting, and the thread that runs host functions and keeps the wall clock going.
#include "sim/simulation.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "sim/reports.h"

namespace vramkit::sim {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// A launch blocks the host when this much work waits in a stream, as a real driver's queue does.
constexpr std::uint32_t kQueueDepth = 1024;
// A host function that takes longer than this no longer holds up the simulated clock.
constexpr milliseconds kHostFunctionPatience{50};
// A wait that nothing in the process can end is given up after this.
constexpr double kDeadlockSeconds = 5;
// Below this a wall-clock wait spins: sleeping is not that exact.
constexpr double kSpinNanoseconds = 100e3;

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * std::int64_t{1000000000} + now.tv_nsec;
}

double wall_now(const Simulation& all, const Machine& machine) {
    return static_cast<double>(monotonic_ns() - all.wall_start_ns) * machine.settings.scale;
}

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

// Runs host functions; with the wall clock, moves the simulation along; with the virtual one, does
// so only where the host may be waiting for a host function or a value without calling the driver.
void background(Simulation& all) {
    std::unique_lock lock(all.lock);
    std::uint64_t calls_before = 0;
    for (;;) {
        run_host_functions(all, lock);
        const std::shared_ptr<Machine> machine = all.machine;
        if (machine != nullptr && machine->settings.wall_clock) {
            while (machine->core().step(wall_now(all, *machine))) {
                run_host_functions(all, lock);
            }
            all.changed.notify_all();
            const double wait_ns =
                (machine->core().next() - wall_now(all, *machine)) / machine->settings.scale;
            all.changed.wait_for(lock, duration<double>(std::clamp(wait_ns * 1e-9, 0.0, 0.05)));
            continue;
        }
        if (machine == nullptr || machine->host_visible == 0) {
            all.changed.wait(lock);
            continue;
        }
        const std::uint64_t seen = all.calls;
        all.changed.wait_for(lock, milliseconds(2));
        if (all.calls != seen || seen != calls_before) {
            calls_before = all.calls;
            continue;
        }
        const int before = machine->host_visible;
        while (machine->host_visible == before && machine->host_functions.empty() &&
               machine->core().step(kNever)) {
        }
        machine->core().look_at_values();
    }
}

void start_background(Simulation& all) {
    if (all.background_started) return;
    all.background_started = true;
    std::thread([&all] { background(all); }).detach();
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
    return Machine::make(std::move(settings), error);
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
    if (machine != nullptr) machine->core().stop();
    ++all.generation;
    all.stacks = all.machine->settings.stacks;
    all.wall_start_ns = monotonic_ns();
    if (all.machine->settings.wall_clock) start_background(all);
    all.changed.notify_all();
}

void write_reports_at_exit() {
    Simulation& all = simulation();
    if (all.forked) return;
    const std::lock_guard guard(all.lock);
    write_reports(all);
}

}  // namespace

Simulation& simulation() {
    static Simulation& all = [&]() -> Simulation& {
        Simulation& made = *std::make_unique<Simulation>().release();
        // Forks wait for the lock: a child must not inherit it shut by a thread that it has not
        // got.
        pthread_atfork([] { simulation().lock.lock(); }, [] { simulation().lock.unlock(); },
                       [] {
                           simulation().forked = true;
                           simulation().lock.unlock();
                       });
        std::atexit(write_reports_at_exit);
        return made;
    }();
    return all;
}

double wall_clock_now() { return wall_now(simulation(), *simulation().machine); }

ThreadState& thread_state() {
    thread_local ThreadState state;
    return state;
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

Call::Call(CallId id, void* return_address, Needs needs) : thread_(thread_state()), id_(id) {
    Simulation& all = simulation();
    if (all.forked.load(std::memory_order_relaxed)) {
        refused_ = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    if (thread_.in_host_function && needs != Needs::nothing && needs != Needs::stream) {
        refused_ = CUDA_ERROR_NOT_PERMITTED;
        return;
    }
    if (thread_.return_address != nullptr) return_address = thread_.return_address;
    std::string stack;
    const Stacks stacks = all.stacks.load(std::memory_order_relaxed);
    if (stacks != Stacks::off) stack = capture_stack(stacks);

    lock_ = std::unique_lock(all.lock);
    std::string error;
    if (ensure_machine(lock_, error) == nullptr) {
        std::fprintf(stderr, "vramkit: the simulated GPU cannot start: VRAMKIT_SIM: %s\n",
                     error.c_str());
        refused_ = CUDA_ERROR_INVALID_VALUE;
        return;
    }
    machine_ = all.machine;
    if (thread_.generation != all.generation) {
        const bool in_host_function = thread_.in_host_function;
        const bool per_thread_default = thread_.per_thread_default;
        void* address = thread_.return_address;
        thread_ = ThreadState{};
        thread_.generation = all.generation;
        thread_.in_host_function = in_host_function;
        thread_.per_thread_default = per_thread_default;
        thread_.return_address = address;
    }
    ++all.calls;
    ++machine_->counts[number(id)];
    host_ = machine_->settings.wall_clock ? wall_now(all, *machine_)
                                          : std::max(thread_.host, core().now());
    if (machine_->settings.checker || machine_->settings.stacks != Stacks::off) {
        site_ = Site{number(id), machine_->places.intern(return_address, std::move(stack)),
                     thread_label()};
    }
    if (!machine_->faults.empty()) {
        const Fault fault = machine_->faults.strike(std::string(kCallNames[number(id)].symbol));
        host_ += fault.delay_ns;
        refused_ = fault.code;
        if (refused_ != CUDA_SUCCESS) return;
    }
    if (needs == Needs::nothing) return;
    if (!machine_->initialised) {
        refused_ = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    const bool current = !thread_.contexts.empty() && thread_.contexts.back() != nullptr;
    if (current) {
        context_ = machine_->find(reinterpret_cast<CUcontext>(thread_.contexts.back()));
    }
    if (needs != Needs::context) return;
    if (!current) {
        refused_ = CUDA_ERROR_INVALID_CONTEXT;
    } else {
        refused_ = context_ == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : context_->error;
    }
}

Call::~Call() {
    if (machine_ == nullptr) return;
    thread_.host = host_;
    Simulation& all = simulation();
    const bool wall = machine_->settings.wall_clock;
    const double host = host_;
    if (!machine_->host_functions.empty() || wall) all.changed.notify_all();
    lock_.unlock();
    if (!wall) return;
    // The call has cost that much time of a real host: take it.
    double rest;
    while ((rest = host - wall_now(all, *machine_)) > 0) {
        if (rest / machine_->settings.scale > kSpinNanoseconds) {
            std::this_thread::sleep_for(duration<double, std::nano>(
                rest / machine_->settings.scale - kSpinNanoseconds / 2));
        }
    }
}

void Call::charge(std::uint64_t bytes) {
    const Profile& profile = machine_->profile();
    const int index = machine_->cost_index[number(id_)];
    bool busy = false;
    if (context_ != nullptr && index >= 0 && profile.calls_busy[index].given()) {
        // Where it matters, the card is looked at as of now; a host function is not waited for.
        while (machine_->host_functions_out == 0 && core().step(host_)) {
        }
        busy = core().kernel_running(context_->device);
    }
    host_ += profile.call_ns(index, bytes, busy);
}

CUresult Call::find(CUstream handle, std::shared_ptr<Stream>& stream) {
    if (handle == nullptr && thread_.per_thread_default) handle = VRAMKIT_STREAM_PER_THREAD;
    const bool legacy = handle == nullptr || handle == VRAMKIT_STREAM_LEGACY;
    if (legacy || handle == VRAMKIT_STREAM_PER_THREAD) {
        // A default stream is one of the current context.
        if (context_ == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        stream = legacy ? context_->legacy : machine_->per_thread_stream(context_, thread_label());
    } else {
        stream = machine_->find_stream(handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    }
    context_ = stream->context;
    return context_->error;
}

CUresult Call::find(CUevent handle, Event*& event) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    event = machine_->find(handle);
    if (event == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context_ == nullptr) context_ = event->context;
    return event->context->error;
}

// Gives host functions that have started a moment to return, so that the virtual clock does not
// run past them; one that is slow, or waits for this very thread, is not waited for again.
void Call::settle_host_functions() {
    if (thread_.in_host_function) return;
    Simulation& all = simulation();
    const auto until = std::chrono::steady_clock::now() + kHostFunctionPatience;
    while (machine_->host_functions_out > machine_->host_functions_slow) {
        start_background(all);
        all.changed.notify_all();
        if (all.changed.wait_until(lock_, until) == std::cv_status::timeout) {
            machine_->host_functions_slow = machine_->host_functions_out;
        }
    }
}

void Call::observe() {
    core().look_at_values();
    do {
        settle_host_functions();
    } while (core().step(host_));
}

CUresult Call::wait_a_little(Waiting& waiting) {
    Simulation& all = simulation();
    // Reset by another thread: the old machine has stopped.
    if (all.machine != machine_) return CUDA_ERROR_DEINITIALIZED;
    if (machine_->settings.wall_clock) {
        if (!core().step(wall_now(all, *machine_))) {
            const double rest =
                (core().next() - wall_now(all, *machine_)) / machine_->settings.scale;
            if (rest > kSpinNanoseconds) {
                all.changed.wait_for(lock_, duration<double>(std::min(rest * 1e-9, 0.005)));
            }
            core().look_at_values();
        }
        host_ = std::max(host_, wall_now(all, *machine_));
    } else {
        settle_host_functions();
        if (core().step(kNever)) {
            host_ = std::max(host_, core().now());
            waiting.quiet_seconds = 0;
            return CUDA_SUCCESS;
        }
        // Nothing on the card can end this wait; perhaps another thread can.
        all.changed.wait_for(lock_, milliseconds(1));
        core().look_at_values();
        host_ = std::max(host_, core().now());
        if (machine_->host_functions_out > 0) return CUDA_SUCCESS;
        waiting.quiet_seconds += 1e-3;
        if (waiting.quiet_seconds > kDeadlockSeconds) {
            if (context_ != nullptr) machine_->checker.deadlock(context_->legacy->actor, site_);
            return CUDA_ERROR_TIMEOUT;
        }
    }
    return CUDA_SUCCESS;
}

CUresult Call::wait_for(const std::shared_ptr<Stream>& stream) {
    // The legacy stream stands for all blocking ones. They are looked up anew each time: one that
    // was destroyed is gone once its work is over.
    Context& context = *stream->context;
    const bool legacy = stream == context.legacy;
    const auto behind = [&] {
        if (!legacy) return std::vector<Stream*>{stream.get()};
        auto all = machine_->all_streams(&context);
        std::erase_if(all, [](const Stream* each) { return !each->blocking; });
        return all;
    };
    const CUresult result = wait([&] {
        const auto all = behind();
        return std::all_of(all.begin(), all.end(), [](Stream* each) { return each->pending == 0; });
    });
    if (result == CUDA_SUCCESS && machine_->settings.checker) {
        if (legacy) machine_->checker.host_waited(context.retired_blocking);
        for (const Stream* each : behind()) machine_->checker.host_waited(each->actor.clock);
    }
    return result;
}

CUresult Call::wait_for_context(Context& context) {
    return wait([&] {
        // Another thread may have destroyed it while this one waits.
        if (machine_->find(reinterpret_cast<CUcontext>(&context)) == nullptr) return true;
        const auto all = machine_->all_streams(&context);
        return std::all_of(all.begin(), all.end(), [](Stream* each) { return each->pending == 0; });
    });
}

Operation* Call::prepare(Kind kind, Lane lane, const std::shared_ptr<Stream>& stream) {
    Operation* operation = core().make();
    operation->kind = kind;
    operation->lane = lane;
    operation->device = stream->context->device;
    operation->priority = stream->priority;
    operation->call = number(id_);
    operation->stream = stream;
    operation->site = site_;
    return operation;
}

CUresult Call::enqueue(Operation* operation) {
    const std::shared_ptr<Stream> stream = operation->stream;
    if (operation->kind == Kind::host_function || operation->kind == Kind::write_value) {
        ++machine_->host_visible;
        start_background(simulation());
    }
    operation->issued = host_;
    machine_->order(operation, *stream);
    core().issue(operation);
    if (machine_->host_visible > 0) simulation().changed.notify_all();
    if (stream->pending <= kQueueDepth) return CUDA_SUCCESS;
    return wait([&] { return stream->pending <= kQueueDepth; });
}

PerThreadDefault::PerThreadDefault(void* return_address) : thread_(thread_state()) {
    thread_.per_thread_default = true;
    thread_.return_address = return_address;
}

PerThreadDefault::~PerThreadDefault() {
    thread_.per_thread_default = false;
    thread_.return_address = nullptr;
}

}  // namespace vramkit::sim
