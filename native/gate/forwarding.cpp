// Connects the exported names with the driver, all of them at the first call of any: after that a
// forwarded call is one jump, without a lock or a system call.
#include "gate/forwarding.h"

#include <dlfcn.h>

#include <cstdlib>
#include <new>

#include "gate/control.h"
#include "gate/find_driver.h"
#include "gate/hooks.h"
#include "gate/no_driver.h"
#include "gate/recording.h"
#include "gate/sharing.h"

namespace vramkit::gate {

std::array<std::atomic<void*>, kExports> detail::reals{};

namespace {

std::atomic<const Found*> opened{nullptr};

// Never freed: the program may call at any time, to its very end.
const Found* driver() {
    const Found* known = opened.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    void* memory = std::malloc(sizeof(Found));
    if (memory == nullptr) {
        static constinit const Found no_memory;
        return &no_memory;
    }
    const Found* made = new (memory) Found(find_driver());
    // Another thread may have been first; it has found the same library.
    if (opened.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
    std::free(memory);
    return known;
}

// Every value that is stored depends on the driver and the environment alone, so that threads that
// come here at the same time do no harm. What is known already stays: see use_if_missing().
void connect() {
    const Found& found = *driver();
    start_recording(found.path.c_str());
    for (std::size_t index = 0; index < kExports; ++index) {
        const auto name = static_cast<Export>(index);
        void* function = found.handle != nullptr ? dlsym(found.handle, kExportNames[index])
                                                 : answer_without_driver(name);
        if (function == nullptr) function = answer_for_missing_call();
        void* unknown = nullptr;
        detail::reals[index].compare_exchange_strong(unknown, function, std::memory_order_relaxed);
    }
    start_sharing(found);
    dlerror();  // names that the driver lacks are not the program's errors
    for (std::size_t index = 0; index < kExports; ++index) {
        const auto name = static_cast<Export>(index);
        const bool has = found.handle != nullptr && real(name) != answer_for_missing_call();
        void* hook = has ? active_hook(name) : nullptr;
        // Released last: who jumps through a slot sees what its hook reads.
        vramkit_gate_slots[index].store(hook != nullptr ? hook : real(name),
                                        std::memory_order_release);
    }
}

}  // namespace

void use_if_missing(Export name, void* function) {
    void* missing = answer_for_missing_call();
    detail::reals[number(name)].compare_exchange_strong(missing, function,
                                                        std::memory_order_relaxed);
}

}  // namespace vramkit::gate

// Called by the trampolines. Returns where the call goes on.
extern "C" __attribute__((visibility("hidden"))) void* vramkit_gate_connect(
    const vramkit::gate::Slot* slot) {
    vramkit::gate::connect();
    return slot->load(std::memory_order_acquire);
}

void* gateDriver(const char** path) {
    const vramkit::gate::Found& found = *vramkit::gate::driver();
    if (path != nullptr) *path = (found.handle != nullptr ? found.path : found.reason).c_str();
    return found.handle;
}

int gateKeepsMemory(void) {
    vramkit::gate::connect();
    return vramkit::gate::added_hooks().count > 0;
}
