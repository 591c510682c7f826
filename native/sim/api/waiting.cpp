// How a driver call waits: for the card, for host functions, and for other threads of the program.
#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "sim/api/call.h"
#include "sim/time/background.h"

namespace vramkit::sim {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;

// A host function that takes longer than this no longer holds up the simulated clock.
constexpr milliseconds kHostFunctionPatience{50};

}  // namespace

// Gives host functions that have started a moment to return, so that the virtual clock does not
// run past them; one that is slow, or waits for this very thread, is not waited for again. False:
// there was none to wait for.
bool Call::settle_host_functions() {
    if (thread_.in_host_function || machine_->host_functions_out <= machine_->host_functions_slow) {
        return false;
    }
    Simulation& all = simulation();
    const auto until = std::chrono::steady_clock::now() + kHostFunctionPatience;
    while (machine_->host_functions_out > machine_->host_functions_slow) {
        start_background(all);
        all.changed.notify_all();
        if (all.changed.wait_until(lock_, until) == std::cv_status::timeout) {
            machine_->host_functions_slow = machine_->host_functions_out;
        }
    }
    return true;
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
        if (core().step(wall_now(*machine_))) {
            waiting.quiet_since.reset();
        } else {
            const double rest = (core().next() - wall_now(*machine_)) / machine_->settings.scale;
            if (rest > kSpinNanoseconds) {
                all.changed.wait_for(lock_, duration<double>(std::min(rest * 1e-9, 0.005)));
            }
            core().look_at_values();
        }
        host_ = std::max(host_, wall_now(*machine_));
        if (core().next() != kNever) return CUDA_SUCCESS;
    } else {
        const bool settled = settle_host_functions();
        if (core().step(kNever)) {
            host_ = std::max(host_, core().now());
            waiting.quiet_since.reset();
            return CUDA_SUCCESS;
        }
        // Nothing on the card can end this wait. Perhaps the host function that has just returned
        // did; else another thread may.
        if (!settled) all.changed.wait_for(lock_, milliseconds(1));
        core().look_at_values();
        host_ = std::max(host_, core().now());
    }
    // Nothing is due on the card. A host function may take its time; else the clock of patience
    // runs.
    const auto now = std::chrono::steady_clock::now();
    if (machine_->host_functions_out > 0) waiting.quiet_since.reset();
    if (!waiting.quiet_since) waiting.quiet_since = now;
    if (duration<double>(now - *waiting.quiet_since).count() < machine_->settings.patience) {
        return CUDA_SUCCESS;
    }
    if (const Operation* stuck = core().waiting_for_value()) {
        machine_->checker.deadlock(stuck->stream->actor, stuck->site, site_);
    }
    return CUDA_ERROR_TIMEOUT;
}

CUresult Call::wait_for(const std::shared_ptr<Stream>& stream) {
    // The legacy stream stands for all blocking ones. They are looked up again each time: one that
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
    if (result != CUDA_SUCCESS) return result;
    // By another thread, in the meantime: nothing may be issued to its streams any more.
    if (context.error == CUDA_ERROR_CONTEXT_IS_DESTROYED) return context.error;
    if (machine_->settings.checker) {
        if (legacy) machine_->checker.host_waited(context.retired_blocking);
        for (const Stream* each : behind()) machine_->checker.host_waited(each->actor.clock);
    }
    return CUDA_SUCCESS;
}

CUresult Call::wait_for_context(Context& context) {
    return wait([&] {
        // Another thread may have destroyed it while this one waits.
        if (machine_->find(reinterpret_cast<CUcontext>(&context)) == nullptr) return true;
        const auto all = machine_->all_streams(&context);
        return std::all_of(all.begin(), all.end(), [](Stream* each) { return each->pending == 0; });
    });
}

CUresult Call::wait_for_work_so_far(Context& context, bool counts) {
    std::unordered_map<std::uint64_t, std::uint64_t> awaited;  // operations, by id of the stream
    Clock done;
    if (machine_->settings.checker) done = context.retired;
    for (const Stream* stream : machine_->all_streams(&context)) {
        awaited.emplace(stream->id, stream->issued);
        if (machine_->settings.checker) done.join(stream->actor.clock);
    }
    const CUresult result = wait([&] {
        // Another thread may have destroyed it while this one waits.
        if (machine_->find(reinterpret_cast<CUcontext>(&context)) == nullptr) return true;
        const auto all = machine_->all_streams(&context);
        return std::all_of(all.begin(), all.end(), [&](const Stream* each) {
            const auto found = awaited.find(each->id);
            return found == awaited.end() || each->issued - each->pending >= found->second;
        });
    });
    if (result != CUDA_SUCCESS || !machine_->settings.checker) return result;
    counts ? machine_->checker.host_waited(done) : machine_->checker.host_waited_implicitly(done);
    return result;
}

void Call::synchronised() { pay_for_return(machine_->pools.synchronised()); }

void Call::pay_for_return(const std::vector<std::uint64_t>& chunks) {
    for (const std::uint64_t chunk : chunks) {
        host_ += machine_->profile().call_ns("cuMemUnmap", chunk, false);
        host_ += machine_->profile().call_ns("cuMemRelease", chunk, false);
    }
}

}  // namespace vramkit::sim
