// The frame that every exported driver call runs in.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "sim/machine/simulation.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace vramkit::sim {

// What a call needs before it can run. lost_context: a context, be it a lost one. stream: a
// context, but that of the stream or event it names serves; the driver lets such calls through
// inside host functions too.
enum class Needs : std::uint8_t { nothing, initialised, lost_context, context, stream };

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
    // Made while the process ends: by the destructor of a global, or of a Python object that nobody
    // has closed.
    bool process_exits() const { return simulation().exiting || python_is_finalizing(); }
    // The simulated GPU has no such call, or not this use of it.
    void unsupported(std::string_view symbol, Unsupported::Reason reason) {
        machine_->unsupported.add(symbol, reason, site_);
    }

    // Host time of this call, by the profile; bytes: the size it is about.
    void charge(std::uint64_t bytes);
    void spend(double nanoseconds) { host_ += nanoseconds; }

    // Finds the stream that a handle means in this call, and makes its context the call's. Refuses
    // what a capture under way forbids.
    CUresult find(CUstream handle, std::shared_ptr<Stream>& stream,
                  Purpose purpose = Purpose::issue);
    CUresult find(CUevent handle, Event*& event);

    // Refuses a call that is unsafe while the thread must heed captures.
    CUresult refuse_unsafe();

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
    // For what was issued before this call: what other threads issue meanwhile is not awaited.
    // counts: as an order for the checker; else a program that needs it is told so.
    CUresult wait_for_work_so_far(Context& context, bool counts = true);
    // The end of a call that synchronises: pools give memory back.
    void synchronised();
    // Host time of giving a pool's chunks back to the card: what virtual memory costs.
    void pay_for_return(const std::vector<std::uint64_t>& chunks);

    // Fills in the common parts of a new operation.
    Operation* prepare(Kind kind, Lane lane, const std::shared_ptr<Stream>& stream);
    // An operation of a graph, to run on this stream.
    Operation* repeat(const Operation& captured, const std::shared_ptr<Stream>& stream);
    // Puts it on its stream, or into the graph that the stream captures; waits where the stream's
    // queue is full.
    CUresult enqueue(Operation* operation);

  private:
    // So that accesses of a host function are judged at its point of the stream.
    void wrap_host_function(Operation& operation);

    struct Waiting {
        std::optional<std::chrono::steady_clock::time_point> quiet_since;
    };
    CUresult wait_a_little(Waiting& waiting);
    bool settle_host_functions();

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
    try {
        const CUresult result = body(call);
        if (result == CUDA_ERROR_NOT_SUPPORTED) {
            call.unsupported(kCallNames[number(id)].symbol, Unsupported::Reason::not_supported);
        }
        return result;
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;  // of the host
    }
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
