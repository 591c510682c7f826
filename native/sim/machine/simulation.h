// The process-wide simulation: its lock, the machine of the moment, and threads' host clocks.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "sim/machine/machine.h"

namespace vramkit::sim {

// Priorities of streams; lower numbers go first.
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// A thread's current contexts, the last one in force. Of fixed size, so that it needs no end.
class ContextStack {
  public:
    static constexpr std::size_t kMost = 32;

    bool empty() const { return depth_ == 0; }
    bool full() const { return depth_ == kMost; }
    Context*& back() { return contexts_[depth_ - 1]; }
    Context* back() const { return contexts_[depth_ - 1]; }
    void push_back(Context* context) { contexts_[depth_++] = context; }
    void pop_back() { --depth_; }

  private:
    std::array<Context*, kMost> contexts_{};
    std::size_t depth_ = 0;
};

// What the simulator keeps for each thread of the program. Nothing of it is ever destroyed: objects
// of the thread may call the driver while they go.
struct ThreadState {
    std::uint64_t generation = 0;  // of the machine that the rest belongs to
    double host = 0;               // the thread's host clock
    ContextStack contexts;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    bool in_host_function = false;
    // Set by the _ptsz and _ptds entry points: handle 0 means the thread's own default stream.
    bool per_thread_default = false;
    bool relies_on_waits = false;  // that cuMemFree and the like do and do not document
    void* return_address = nullptr;
    // The point of the host function that the thread runs, for what it tells of its accesses.
    const Deferred* host_function = nullptr;
};
static_assert(std::is_trivially_destructible_v<ThreadState>);

ThreadState& thread_state();

struct Simulation {
    std::mutex lock;
    std::condition_variable changed;
    std::shared_ptr<Machine> machine;
    std::uint64_t generation = 0;
    std::uint64_t calls = 0;  // of any kind; tells a quiet program from a busy one
    bool background_started = false;
    std::atomic<bool> forked{false};
    bool exiting = false;  // the process is
    std::atomic<Stacks> stacks{Stacks::off};
    std::atomic<std::int64_t> wall_start_ns{0};
};

// Never destroyed: threads of the program may still call while it exits.
Simulation& simulation();

// Runs callbacks of user objects, as the driver does: they may make no driver calls. The lock is
// not held.
void run_callbacks(const DueCallbacks& callbacks);

// The wall clock, in nanoseconds of the machine. A wait for less than the constant, in real ones,
// spins: sleeping is not that exact.
double wall_now(const Machine& machine);
inline constexpr double kSpinNanoseconds = 100e3;

// Makes the machine from VRAMKIT_SIM where there is none yet; the lock is held, and let go of for a
// moment. Null and a reason on bad settings.
Machine* ensure_machine(std::unique_lock<std::mutex>& lock, std::string& error);
// Replaces the machine. Empty, or what is wrong with the settings.
std::string reset(std::string_view settings);

}  // namespace vramkit::sim
