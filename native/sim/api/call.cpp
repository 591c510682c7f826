// The frame of a driver call: what refuses it, what it costs, what it names, and what it issues.
#include "sim/api/call.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "sim/checker/reports.h"
#include "sim/time/background.h"

namespace vramkit::sim {
namespace {

// A launch blocks the host when this much work waits in a stream, as a real driver's queue does.
constexpr std::uint32_t kQueueDepth = 1024;

// A host function as the program gave it, and where it stands in the order of its stream.
struct HostFunction {
    CUhostFn function = nullptr;
    CUstreamCallback callback = nullptr;
    void* data = nullptr;
    std::shared_ptr<Deferred> point;
};

template <class Body>
void run_at(const HostFunction& record, Body body) {
    ThreadState& thread = thread_state();
    thread.host_function = record.point.get();
    body();
    thread.host_function = nullptr;
}

void run_function(void* data) {
    const auto& record = *static_cast<const HostFunction*>(data);
    run_at(record, [&] { record.function(record.data); });
}

void run_callback(CUstream stream, CUresult status, void* data) {
    const auto& record = *static_cast<const HostFunction*>(data);
    run_at(record, [&] { record.callback(stream, status, record.data); });
}

}  // namespace

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
        const bool relies_on_waits = thread_.relies_on_waits;
        void* address = thread_.return_address;
        const Deferred* host_function = thread_.host_function;
        thread_ = ThreadState{};
        thread_.host_function = host_function;
        thread_.generation = all.generation;
        thread_.in_host_function = in_host_function;
        thread_.per_thread_default = per_thread_default;
        thread_.relies_on_waits = relies_on_waits;
        thread_.return_address = address;
    }
    ++all.calls;
    ++machine_->counts[number(id)];
    host_ =
        machine_->settings.wall_clock ? wall_now(*machine_) : std::max(thread_.host, core().now());
    if (machine_->settings.checker || machine_->settings.stacks != Stacks::off) {
        site_ = Site{number(id), machine_->call_sites.intern(return_address, std::move(stack)),
                     thread_label()};
    }
    if (!machine_->faults.empty()) {
        const Fault fault = machine_->faults.strike(kCallNames[number(id)]);
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
    if (unsafe_while_capturing(id) && !machine_->captures.none()) {
        refused_ = refuse_unsafe();
        if (refused_ != CUDA_SUCCESS) return;
    }
    if (needs != Needs::context && needs != Needs::lost_context) return;
    if (!current) {
        refused_ = CUDA_ERROR_INVALID_CONTEXT;
    } else if (context_ == nullptr) {
        refused_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else if (needs == Needs::context) {
        refused_ = context_->error;
    }
}

CUresult Call::refuse_unsafe() {
    return machine_->captures.admit_unsafe(thread_.capture_mode, thread_label());
}

Call::~Call() {
    if (machine_ == nullptr) return;
    host_ += machine_->take_eviction_ns();
    thread_.host = host_;
    Simulation& all = simulation();
    const bool wall = machine_->settings.wall_clock;
    if (!machine_->host_functions.empty() || wall) all.changed.notify_all();
    // As they come: a process that is killed or leaves by _exit takes none along.
    const std::size_t found =
        machine_->checker.reports.reports().size() + machine_->unsupported.refused();
    if (!machine_->settings.reports.empty() && machine_->reports_written != found) {
        machine_->reports_written = found;
        write_report_file(*machine_, thread_.generation);
    }
    // After a reset nobody is told of the objects that went with the former machine.
    const DueCallbacks due =
        all.machine == machine_ ? machine_->take_due_callbacks() : DueCallbacks{};
    if (!wall) {
        lock_.unlock();
        run_callbacks(due);
        return;
    }
    // The call has cost that much time of a real host: take it.
    using std::chrono::steady_clock;
    using Nanoseconds = std::chrono::duration<double, std::nano>;
    const double rest = (host_ - wall_now(*machine_)) / machine_->settings.scale;
    const auto until =
        steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(Nanoseconds(rest));
    lock_.unlock();
    run_callbacks(due);
    if (rest > kSpinNanoseconds) {
        std::this_thread::sleep_for(Nanoseconds(rest - kSpinNanoseconds / 2));
    }
    while (rest > 0 && steady_clock::now() < until) {
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

CUresult Call::find(CUstream handle, std::shared_ptr<Stream>& stream, Purpose purpose) {
    if (handle == nullptr && thread_.per_thread_default) handle = VRAMKIT_STREAM_PER_THREAD;
    const bool legacy = handle == nullptr || handle == VRAMKIT_STREAM_LEGACY;
    if (legacy || handle == VRAMKIT_STREAM_PER_THREAD) {
        // A default stream is one of the current context.
        if (context_ == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        stream = legacy ? context_->legacy : machine_->per_thread_stream(context_, thread_label());
    } else {
        stream = machine_->find_stream(handle);
        // A real driver looks for the context of what it takes for a stream, and finds none; where
        // the memory of the handle is gone too, it crashes.
        if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    }
    context_ = stream->context;
    if (context_->error != CUDA_SUCCESS || purpose == Purpose::ask) return context_->error;
    if (!machine_->captures.none()) {
        const CUresult admitted = machine_->captures.admit(*stream, purpose);
        if (admitted != CUDA_SUCCESS) return admitted;
    }
    if (purpose == Purpose::wait || stream->pending < kQueueDepth) return CUDA_SUCCESS;
    // The queue is full: the host waits now, before anything is issued that could not be taken
    // back.
    const std::shared_ptr<Stream> full = stream;
    const CUresult waited = wait([&] { return full->pending < kQueueDepth; });
    return waited != CUDA_SUCCESS ? waited : context_->error;
}

CUresult Call::find(CUevent handle, Event*& event) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    event = machine_->find(handle);
    if (event == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (context_ == nullptr) context_ = event->context;
    return event->context->error;
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

Operation* Call::repeat(const Operation& captured, const std::shared_ptr<Stream>& stream) {
    Operation* operation = core().make();
    const std::uint64_t sequence = operation->sequence;
    *operation = captured;
    operation->sequence = sequence;
    operation->device = stream->context->device;
    operation->priority = stream->priority;
    operation->stream = stream;
    operation->site = site_;
    return operation;
}

CUresult Call::enqueue(Operation* operation) {
    const std::shared_ptr<Stream> stream = operation->stream;
    if (stream->capture != nullptr) {
        Captures::add(*stream, *operation);
        core().discard(operation);
        return CUDA_SUCCESS;
    }
    if (operation->kind == Kind::write_value || operation->kind == Kind::wait_value) {
        machine_->order_value_for_checker(*operation);
    }
    if (operation->kind == Kind::host_function && machine_->settings.checker) {
        wrap_host_function(*operation);
    }
    if (operation->kind == Kind::host_function || operation->kind == Kind::write_value) {
        ++machine_->host_visible;
        start_background(simulation());
    }
    operation->issued = host_;
    machine_->order(operation, *stream);
    core().issue(operation);
    if (machine_->host_visible > 0) simulation().changed.notify_all();
    return CUDA_SUCCESS;
}

void Call::wrap_host_function(Operation& operation) {
    const auto record = std::make_shared<HostFunction>(
        HostFunction{operation.function, operation.callback, operation.data,
                     machine_->checker.defer(operation.stream->actor)});
    record->point->generation = thread_.generation;
    if (operation.function != nullptr) operation.function = run_function;
    if (operation.callback != nullptr) operation.callback = run_callback;
    operation.data = record.get();
    operation.host_record = record;
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
