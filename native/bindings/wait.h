// Waits for the GPU that Ctrl-C can interrupt. Python runs signal handlers on its main thread,
// between two steps of the interpreter; a driver call that blocks there would delay them.
//
// On any other thread, and on the virtual clock of the simulated GPU, a wait is the plain call.
#pragma once

#include <functional>

#include "bindings/invoke.h"

namespace vramkit {

// True where a wait must let signals through: on the main thread, where time is real.
bool is_interruptible(const Session& session);

// For the scope of relying_on_waits(): the checker of the simulated GPU goes by the calling thread,
// so every call is made on it.
void set_calls_stay_here(bool on);

// Makes a driver call on another thread, with the context and the capture mode of this one, and
// waits for it without the GIL. Raises what a signal handler raises; the call still continues to
// its end then, so it must own what it uses. Costs two thread switches.
CallResult call_elsewhere(Device& device, std::function<CUresult()> call, const char* symbol);

// Calls `query` until it returns something other than "not ready": for a millisecond without a
// pause, as the driver's own waits do, then with pauses of 1/64 of the time that passed, 1 ms at
// most. Handles signals every 20 ms and raises what they raise. False: the simulated GPU was polled
// for 100 ms; it may be a deadlock, which only its blocking call detects.
bool poll(Device& device, const std::function<CUresult()>& query);

// A call that waits for the whole device. It has no query, so it is made on another thread.
template <typename Function, typename... Arguments>
CallResult call_waiting(Device& device, Function function, const char* symbol,
                        Arguments... arguments) {
    if (is_interruptible(device.session())) {
        return call_elsewhere(device, [=] { return function(arguments...); }, symbol);
    }
    return call_released(device, function, symbol, arguments...);
}

// A call that waits for what `query` polls. It is made in any case, also when nothing is left to
// wait for: it has the effects of a synchronisation (memory of cuMemFreeAsync goes back, for
// example), and it reports its own error. `own`: only the calling thread can wait for it, because
// it is its per-thread default stream.
template <typename Function, typename Query, typename Handle>
CallResult call_waiting_for(Device& device, Function function, const char* symbol, Query query,
                            Handle handle, bool own = false) {
    if (is_interruptible(device.session())) {
        const bool ready = poll(device, [=] { return query(handle); });
        if (!ready && !own) return call_waiting(device, function, symbol, handle);
    }
    return call_released(device, function, symbol, handle);
}

}  // namespace vramkit

#define VRAMKIT_INVOKE_WAITING(device, symbol, ...)                                           \
    ::vramkit::check_call((device), ::vramkit::call_waiting((device), (device).call().symbol, \
                                                            #symbol __VA_OPT__(, ) __VA_ARGS__))
#define VRAMKIT_INVOKE_WAITING_FOR(device, symbol, query, ...)                                   \
    ::vramkit::check_call((device),                                                              \
                          ::vramkit::call_waiting_for((device), (device).call().symbol, #symbol, \
                                                      (device).call().query, __VA_ARGS__))
