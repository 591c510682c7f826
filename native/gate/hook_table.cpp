// The table of hooks, made from hooks.def.
#include <array>
#include <string_view>
#include <type_traits>

#include "driver/table.h"
#include "gate/forwarding.h"
#include "gate/hooks.h"
#include "gate/recording.h"
#include "gate/sharing.h"

namespace vramkit::gate {
namespace {

// The function that programs get: finds the driver's own and hands both to the hook.
template <auto hook, Hook id, Export name, bool per_thread, class Function>
struct Entry;

template <auto hook, Hook id, Export name, bool per_thread, class... Arguments>
struct Entry<hook, id, name, per_thread, CUresult(Arguments...)> {
    static CUresult call(Arguments... arguments) {
        using Function = CUresult(Arguments...);
        return hook(Call<Function>{{id, per_thread}, real_as<Function>(name)}, arguments...);
    }
};

template <auto hook, Hook id, Export name, bool per_thread, class Function>
void* entry() {
    return reinterpret_cast<void*>(&Entry<hook, id, name, per_thread, Function>::call);
}

struct Form {
    Export name;
    void* (*entry)();  // null: there is no such form
};

struct Row {
    std::string_view base;
    int since;
    bool always;
    Form plain;
    Form per_thread;
};

#define VRAMKIT_ENTRY(symbol, name, per_thread, hook, params) \
    {Export::name, &entry<hooks::hook, Hook::symbol, Export::name, per_thread, CUresult params>}
#define VRAMKIT_PER_THREAD_none(symbol, hook, params) {Export::count, nullptr}
#define VRAMKIT_PER_THREAD_ptsz(symbol, hook, params) \
    VRAMKIT_ENTRY(symbol, symbol##_ptsz, true, hook, params)
#define VRAMKIT_PER_THREAD_ptds(symbol, hook, params) \
    VRAMKIT_ENTRY(symbol, symbol##_ptds, true, hook, params)

constexpr bool always = true;
constexpr bool recording = false;

// Constant, not made at run time: calls may come before any constructor of this library has run.
constexpr std::array<Row, kHooks> kRows = {{
#define VRAMKIT_HOOK(base, symbol, since, suffix, when, hook, params)        \
    {#base, since, when, VRAMKIT_ENTRY(symbol, symbol, false, hook, params), \
     VRAMKIT_PER_THREAD_##suffix(symbol, hook, params)},
#include "gate/hooks.def"
#undef VRAMKIT_HOOK
}};

// A row of a call that vramkit makes itself has the parameters of driver/manifest.def.
#define VRAMKIT_HOOK(base, symbol, since, suffix, when, hook, params)           \
    template <class Table>                                                      \
    constexpr bool agrees_##symbol() {                                          \
        if constexpr (requires { &Table::symbol; }) {                           \
            return std::is_same_v<decltype(Table::symbol), CUresult(*) params>; \
        } else {                                                                \
            return true;                                                        \
        }                                                                       \
    }                                                                           \
    static_assert(agrees_##symbol<DriverTable>(), #symbol " differs from driver/manifest.def");
#include "gate/hooks.def"
#undef VRAMKIT_HOOK

bool active(const Row& row) { return row.always || is_recording(); }

// Calls visit(base, since, name, per_thread, entry) for each form that is in force, until one
// returns true. What keeps the program's memory comes before what records it.
template <class Visit>
void each_form(Visit visit) {
    const AddedHooks added = added_hooks();
    for (std::size_t index = 0; index < added.count; ++index) {
        const AddedHook& hook = added.hooks[index];
        if (visit(hook.base, hook.since, hook.name, hook.per_thread, hook.function)) return;
    }
    for (const Row& row : kRows) {
        if (!active(row)) continue;
        for (const bool per_thread : {false, true}) {
            const Form& form = per_thread ? row.per_thread : row.plain;
            if (form.entry == nullptr) continue;
            if (visit(row.base, row.since, form.name, per_thread, form.entry())) return;
        }
    }
}

// The driver's entry point for a version and form of a call; null where it has none.
void* asked_of_driver(std::string_view base, int since, bool per_thread) {
    // Older ones know no form for per-thread default streams.
    constexpr int kPerThreadSince = 7000;
    const int version = per_thread && since < kPerThreadSince ? kPerThreadSince : since;
    const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                        : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void* function = nullptr;
    const auto get =
        real_as<CUresult(const char*, void**, int, cuuint64_t)>(Export::cuGetProcAddress);
    return get(base.data(), &function, version, flags) == CUDA_SUCCESS ? function : nullptr;
}

}  // namespace

void* active_hook(Export name) {
    void* found = nullptr;
    each_form([&](std::string_view, int, Export form, bool, void* entry) {
        if (form == name) found = entry;
        return found != nullptr;
    });
    return found;
}

void* active_hook(const char* base, void* given) {
    // What the driver exports under a name and what it gives out for it are the same function in
    // the drivers that we know. Where they are not, the driver is asked for each version that we
    // have.
    void* found = nullptr;
    for (const bool ask : {false, true}) {
        each_form([&](std::string_view row, int since, Export name, bool per_thread, void* entry) {
            if (row != base) return false;
            if (given != (ask ? asked_of_driver(row, since, per_thread) : real(name))) return false;
            if (ask) use_if_missing(name, given);
            found = entry;
            return true;
        });
        if (found != nullptr) return found;
    }
    // Under the name of an older call a newer version may be another call: cuGraphInstantiate is
    // cuGraphInstantiateWithFlags since 12.0. What it exports under that name has those parameters.
    each_form([&](std::string_view, int, Export name, bool, void* entry) {
        if (given == real(name)) found = entry;
        return found != nullptr;
    });
    return found;
}

}  // namespace vramkit::gate
