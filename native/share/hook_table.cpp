// The functions that stand in for driver calls, made from hooks.def, and the start of the library.
#include <array>

#include "gate/added_hooks.h"
#include "share/hooks.h"

namespace vramkit::share {
namespace {

std::atomic<const std::atomic<void*>*> driver_calls{nullptr};

struct Passes {
    template <class Function, class... Arguments>
    static CUresult run(const Call<Function>& call, Arguments... arguments) {
        const Passage passage(stream_of(call, arguments...));
        if (passage.refused() != CUDA_SUCCESS) return passage.refused();
        return call(arguments...);
    }
};

struct Launches {
    template <class Function, class... Arguments>
    static CUresult run(const Call<Function>& call, Arguments... arguments) {
        Passenger& me = LaunchGate::mine();
        // A load and a store: nobody else writes it.
        const std::uint32_t left = me.launches_left.load(std::memory_order_relaxed) - 1;
        me.launches_left.store(left, std::memory_order_relaxed);
        if (left == 0) [[unlikely]] {
            Program::get().after_many_launches(me, stream_of(call, arguments...));
        }
        return Passes::run(call, arguments...);
    }
};

// The function that programs get: hands the driver's own to what runs.
template <class Run, Export name, bool per_thread, class Function>
struct Entry;

template <class Run, Export name, bool per_thread, class... Arguments>
struct Entry<Run, name, per_thread, CUresult(Arguments...)> {
    static CUresult call(Arguments... arguments) noexcept {
        using Function = CUresult(Arguments...);
        void* const real = driver_calls.load(std::memory_order_relaxed)[gate::number(name)].load(
            std::memory_order_relaxed);
        return Run::run(Call<Function>{{name, per_thread}, reinterpret_cast<Function*>(real)},
                        arguments...);
    }
};

#define VRAMKIT_RUN_launch(symbol, hook) using Run_##symbol = Launches;
#define VRAMKIT_RUN_passes(symbol, hook) using Run_##symbol = Passes;
#define VRAMKIT_RUN_hooked(symbol, hook)                                      \
    struct Run_##symbol {                                                     \
        template <class Function, class... Arguments>                         \
        static CUresult run(const Call<Function>& call, Arguments... given) { \
            return hooks::hook(call, given...);                               \
        }                                                                     \
    };
#define VRAMKIT_HOOK(base, symbol, since, suffix, kind, hook, params) \
    VRAMKIT_RUN_##kind(symbol, hook)
#include "share/hooks.def"
#undef VRAMKIT_HOOK

#define VRAMKIT_ENTRY(base, symbol, name, since, per_thread, params) \
    gate::AddedHook{#base, since, Export::name, per_thread,          \
                    reinterpret_cast<void*>(                         \
                        &Entry<Run_##symbol, Export::name, per_thread, CUresult params>::call)},
#define VRAMKIT_PER_THREAD_none(base, symbol, since, params)
#define VRAMKIT_PER_THREAD_ptsz(base, symbol, since, params) \
    VRAMKIT_ENTRY(base, symbol, symbol##_ptsz, since, true, params)
#define VRAMKIT_PER_THREAD_ptds(base, symbol, since, params) \
    VRAMKIT_ENTRY(base, symbol, symbol##_ptds, since, true, params)

const gate::AddedHook kHooks[] = {
#define VRAMKIT_HOOK(base, symbol, since, suffix, kind, hook, params) \
    VRAMKIT_ENTRY(base, symbol, symbol, since, false, params)         \
    VRAMKIT_PER_THREAD_##suffix(base, symbol, since, params)
#include "share/hooks.def"
#undef VRAMKIT_HOOK
};

const gate::AddedHooks kAll{kHooks, std::size(kHooks)};

}  // namespace
}  // namespace vramkit::share

// For Python code in the program (vramkit.share): 1 where the daemon is told, else 0.
extern "C" __attribute__((visibility("default"))) int vramkitShareIdle(void) {
    return vramkit::share::Program::get().say_idle();
}
extern "C" __attribute__((visibility("default"))) int vramkitShareLease(int begins) {
    return vramkit::share::Program::get().lease(begins != 0);
}

extern "C" __attribute__((visibility("default"))) const vramkit::gate::AddedHooks*
vramkitShareStart(const vramkit::gate::Beneath& beneath) {
    using namespace vramkit::share;
    try {
        Program::start(beneath);
    } catch (const std::bad_alloc&) {
        return nullptr;  // alone on the card, as without sharing
    }
    driver_calls.store(beneath.calls, std::memory_order_release);
    return &kAll;
}
