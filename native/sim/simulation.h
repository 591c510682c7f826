// The process-wide simulation: its lock, the machine of the moment, threads' host clocks, and the
// frame that every exported driver call runs in.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sim/machine.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace vramkit::sim {

// Priorities of streams; lower numbers go first.
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// What the simulator keeps for each thread of the program.
struct ThreadState {
    std::uint64_t generation = 0;  // of the machine that the rest belongs to
    double host = 0;               // the thread's host clock
    std::vector<Context*> contexts;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    bool in_host_function = false;
    // Set by the _ptsz and _ptds entry points: handle 0 means the thread's own default stream.
    bool per_thread_default = false;
    void* return_address = nullptr;
};

ThreadState& thread_state();

struct Simulation {
    std::mutex lock;
    std::condition_variable changed;
    std::shared_ptr<Machine> machine;
    std::uint64_t generation = 0;
    std::uint64_t calls = 0;  // of any kind; tells a quiet program from a busy one
    bool background_started = false;
    std::atomic<bool> forked{false};
    std::atomic<Stacks> stacks{Stacks::off};
    std::int64_t wall_start_ns = 0;
};

// Never destroyed: threads of the program may still call while it exits.
Simulation& simulation();

// The wall clock of the simulation, in its nanoseconds; the lock is held.
double wall_clock_now();

// Makes the machine from VRAMKIT_SIM where there is none yet; the lock is held, and let go of for a
// moment. Null and a reason on bad settings.
Machine* ensure_machine(std::unique_lock<std::mutex>& lock, std::string& error);
// Replaces the machine. Empty, or what is wrong with the settings.
std::string reset(std::string_view settings);

// What a call needs before it can run. stream: a context, but that of the stream or event it names
// serves; the driver lets such calls through inside host functions too.
enum class Needs : std::uint8_t { nothing, initialised, context, stream };

inline constexpr std::uint64_t kChargeLater = ~std::uint64_t{0};

// One driver call under way: who makes it, when, and in which context.
class Call {
  public:
    Call(CallId id, void* return_address, Needs needs);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Why the call does not run: not initialised, no context, a lost context, an injected fault.
    CUresult refused() const { return refused_; }

    Machine& machine() { return *machine_; }
    Core& core() { return machine_->core(); }
    Context& context() { return *context_; }
    ThreadState& thread() { return thread_; }
    const Site& site() const { return site_; }
    double host() const { return host_; }

    // Host time of this call, by the profile; bytes: the size it is about.
    void charge(std::uint64_t bytes);
    void spend(double nanoseconds) { host_ += nanoseconds; }

    // Finds the stream that a handle means in this call, and makes its context the call's.
    CUresult find(CUstream handle, std::shared_ptr<Stream>& stream);
    CUresult find(CUevent handle, Event*& event);

    // Runs the simulation up to this call's host time.
    void observe();
    // Runs it until done() holds, and lets the host wait that long. An error where that can never
    // be.
    template <class Done>
    CUresult wait(Done done) {
        Waiting waiting;
        while (!done()) {
            const CUresult result = wait_a_little(waiting);
            if (result != CUDA_SUCCESS) return result;
        }
        return CUDA_SUCCESS;
    }
    CUresult wait_for(const std::shared_ptr<Stream>& stream);
    CUresult wait_for_context(Context& context);

    // Fills in the common parts of a new operation.
    Operation* prepare(Kind kind, Lane lane, const std::shared_ptr<Stream>& stream);
    // Puts it on its stream; waits where the stream's queue is full.
    CUresult enqueue(Operation* operation);

  private:
    struct Waiting {
        double quiet_seconds = 0;
    };
    CUresult wait_a_little(Waiting& waiting);
    void settle_host_functions();

    ThreadState& thread_;
    std::unique_lock<std::mutex> lock_;
    std::shared_ptr<Machine> machine_;
    Context* context_ = nullptr;
    CallId id_;
    Site site_;
    double host_ = 0;
    CUresult refused_ = CUDA_SUCCESS;
};

// The frame of an exported call: refuses or charges, then runs the body.
template <class Body>
CUresult run(CallId id, void* return_address, Needs needs, std::uint64_t bytes, Body body) {
    Call call(id, return_address, needs);
    if (call.refused() != CUDA_SUCCESS) return call.refused();
    if (bytes != kChargeLater) call.charge(bytes);
    return body(call);
}

// Makes handle 0 mean the per-thread default stream for the time of one call.
class PerThreadDefault {
  public:
    explicit PerThreadDefault(void* return_address);
    ~PerThreadDefault();

  private:
    ThreadState& thread_;
};

#define SIM_RETURN_ADDRESS __builtin_extract_return_addr(__builtin_return_address(0))

// Exports symbol_suffix: the same call with per-thread default streams.
#define SIM_PER_THREAD(symbol, suffix, params, args)                      \
    SIM_EXPORT CUresult symbol##_##suffix params {                        \
        const ::vramkit::sim::PerThreadDefault scope(SIM_RETURN_ADDRESS); \
        return symbol args;                                               \
    }

}  // namespace vramkit::sim
