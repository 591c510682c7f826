#include "gate/sharing.h"

#include <dlfcn.h>

#include <cstdlib>

#include "gate/control.h"
#include "gate/forwarding.h"

namespace vramkit::gate {
namespace {

// The same for all threads that find it.
std::atomic<const AddedHooks*> added{nullptr};

// Beside the gate's own file, wherever links lead to it.
void* load() {
    Dl_info info{};
    char real[PATH_MAX];
    if (dladdr(reinterpret_cast<void*>(&gateDriver), &info) == 0 ||
        realpath(info.dli_fname, real) == nullptr) {
        return nullptr;
    }
    Path path(folder_of(real));
    return dlopen(path.append("libvramkit_share.so").c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

void start_sharing(const Found& driver) {
    if (secure_getenv("VRAMKIT_SHARE") == nullptr || driver.handle == nullptr) return;
    // Each thread loads, since one that loads a library of the program may hold the linker's lock
    // and must not wait here for one that waits for that.
    void* library = load();
    if (library == nullptr) return;
    const auto begin = reinterpret_cast<StartSharing*>(dlsym(library, "vramkitShareStart"));
    if (begin == nullptr) return;
    const Beneath beneath{driver.handle, driver.path.c_str(), detail::reals.data()};
    added.store(begin(beneath), std::memory_order_release);
}

AddedHooks added_hooks() {
    const AddedHooks* known = added.load(std::memory_order_acquire);
    return known != nullptr ? *known : AddedHooks{};
}

}  // namespace vramkit::gate
