// Hooks: functions that stand in for driver calls. hooks.def lists them; a hook gets the call
// beside its arguments, and makes it itself. It may not throw, print or change a result.
#pragma once

#include <cstdint>

#include "driver/cuda_abi.h"
#include "gate/call.h"
#include "gate/slots.h"

namespace vramkit::gate {

enum class Hook : std::uint16_t {
#define VRAMKIT_HOOK(base, symbol, since, suffix, when, hook, params) symbol,
#include "gate/hooks.def"
#undef VRAMKIT_HOOK
    count,
};

inline constexpr std::size_t kHooks = static_cast<std::size_t>(Hook::count);

inline constexpr std::size_t number(Hook hook) { return static_cast<std::size_t>(hook); }

using CallId = CallIdOf<Hook>;

template <class Function>
using Call = CallOf<CallId, Function>;

template <class Function>
struct HookOf;

template <class... Arguments>
struct HookOf<CUresult(Arguments...)> {
    using Type = CUresult(const Call<CUresult(Arguments...)>& call, Arguments... arguments);
};

// Declares every hook with the parameters of its rows.
namespace hooks {
#define VRAMKIT_HOOK(base, symbol, since, suffix, when, hook, params) \
    HookOf<CUresult params>::Type hook;
#include "gate/hooks.def"
#undef VRAMKIT_HOOK
}  // namespace hooks

// The hook behind an exported name, in the right form, or null where the call is to be forwarded.
void* active_hook(Export name);

// The hook for an entry point that the driver itself gave out under this base name: that of the
// version and form which the driver gave. Null where none of ours is the same call: a version that
// is newer than we know, for example.
void* active_hook(const char* base, void* given);

}  // namespace vramkit::gate
