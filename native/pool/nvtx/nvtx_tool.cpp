// Loads the tool as NVTX does: first its core, then the extension.
#include "pool/nvtx/nvtx_tool.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <optional>

namespace vramkit::pool::nvtx {
namespace {

// Tables that the tool fills. It asks for them by number, without an argument of ours, and keeps
// their addresses until the process ends: hence one static object.
struct CoreTables {
    Function functions[kCoreModules][kMostCoreSlots] = {};
    Function* slots[kCoreModules][kMostCoreSlots + 1] = {};  // the void one and the end are null

    CoreTables() {
        for (unsigned module = 1; module < kCoreModules; ++module) {
            for (unsigned slot = 1; slot < kCoreSlots[module]; ++slot) {
                slots[module][slot] = &functions[module][slot];
            }
        }
    }
};

CoreTables& core_tables() {
    static CoreTables tables;
    return tables;
}

int slots_of(std::uint32_t module, Function*** table, unsigned* count) {
    if (module == 0 || module >= kCoreModules) return 0;
    if (table != nullptr) *table = core_tables().slots[module];
    if (count != nullptr) *count = kCoreSlots[module];
    return 1;
}

const void* table_of(std::uint32_t number) {
    static const CallbackTable callbacks{sizeof(CallbackTable), slots_of};
    static const VersionTable version{sizeof(VersionTable), kVersion, 0, [](std::uint32_t) {}};
    if (number == kCallbackTable) return &callbacks;
    if (number == kVersionTable) return &version;
    return nullptr;
}

template <class Entry>
Entry entry(void* library, const char* name) {
    return reinterpret_cast<Entry>(dlsym(library, name));
}

// Null for a tool without domains: its memory functions work without one.
Domain make_domain(void* library) {
    const auto initialize = entry<InitializeCore>(library, kCoreEntry);
    if (initialize == nullptr || initialize(table_of) == 0) return nullptr;
    const Function create = core_tables().functions[kDomains][kDomainCreate];
    return create == nullptr ? nullptr : reinterpret_cast<DomainCreate>(create)("vramkit");
}

std::optional<Tool> load() {
    const char* const path = std::getenv(kToolVariable);
    if (path == nullptr || *path == '\0') return std::nullopt;
    void* const library = dlopen(path, RTLD_LAZY);
    if (library == nullptr) return std::nullopt;
    const auto initialize = entry<InitializeExtension>(library, kExtensionEntry);
    if (initialize == nullptr) return std::nullopt;
    const Domain domain = make_domain(library);
    std::intptr_t slots[kMemorySlots] = {};
    Segment segment{1, kMemorySlots, slots};
    Module module{kVersion, sizeof(Module), kMemoryModule, kMemoryCompatibility,
                  1,        &segment,       nullptr,       nullptr};
    if (initialize(&module) == 0) return std::nullopt;
    for (const MemorySlot slot :
         {kHeapRegister, kHeapUnregister, kRegionsRegister, kRegionsUnregister}) {
        if (slots[slot] == 0) return std::nullopt;
    }
    return Tool{domain, reinterpret_cast<HeapRegister>(slots[kHeapRegister]),
                reinterpret_cast<HeapUnregister>(slots[kHeapUnregister]),
                reinterpret_cast<RegionsRegister>(slots[kRegionsRegister]),
                reinterpret_cast<RegionsUnregister>(slots[kRegionsUnregister])};
}

}  // namespace

const Tool* tool() {
    static std::mutex lock;
    static std::optional<Tool> loaded;
    const std::lock_guard guard(lock);
    if (!loaded) loaded = load();
    return loaded ? &*loaded : nullptr;
}

}  // namespace vramkit::pool::nvtx
