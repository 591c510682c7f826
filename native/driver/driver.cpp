// Opens a libcuda.so.1 and fills the table from the manifest. Where the gate is loaded and forwards
// to the library that is asked for, calls go through it; all else is asked of that library itself.
#include "driver/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <type_traits>

#include "driver/usual_paths.h"
#include "gate/control.h"

namespace vramkit {
namespace {

// Exported by the simulated GPU alone.
constexpr const char* kSimulatorMark = "simReset";

std::string loaded_path(void* handle, const std::string& fallback) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') {
        return map->l_name;
    }
    return fallback;
}

// A library that speaks the ABI, with the gate before it or not.
struct Library {
    void* calls = nullptr;   // where driver calls are found
    void* driver = nullptr;  // the driver itself; the same where no gate is before it
    std::string reason;      // why there is none
};

// `handle` may be the gate: then the driver is what it forwards to.
Library behind(void* handle) {
    const auto ask = reinterpret_cast<decltype(&gateDriver)>(dlsym(handle, "gateDriver"));
    if (ask == nullptr) return {handle, handle, ""};
    const char* text = nullptr;
    void* driver = ask(&text);
    return {handle, driver, driver == nullptr && text != nullptr ? text : ""};
}

// The gate is what answers to the name where it was put before this program. Null where nothing of
// that name is loaded.
void* loaded_by_name() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD); }

bool simulated_library(void* driver) { return dlsym(driver, kSimulatorMark) != nullptr; }

std::string last_error() {
    const char* text = dlerror();
    return text != nullptr ? text : "unknown error of the dynamic loader";
}

}  // namespace

Driver::Opened Driver::from_handles(void* calls, void* library, std::string path) {
    std::shared_ptr<Driver> driver(new Driver(library, std::move(path)));
    std::string missing;
    [[maybe_unused]] const auto find = [&](auto& field, const char* name, bool required) {
        using Function = std::remove_reference_t<decltype(field)>;
        // The gate has every name that it knows, whether the driver has it or not.
        void* function = dlsym(library, name);
        if (void* through = dlsym(calls, name); function != nullptr && through != nullptr) {
            function = through;
        }
        field = reinterpret_cast<Function>(function);
        if (field == nullptr && required)
            missing += missing.empty() ? name : ", " + std::string(name);
    };
#define VRAMKIT_LOAD_required(symbol) find(driver->table_.symbol, #symbol, true);
#define VRAMKIT_LOAD_optional(symbol) find(driver->table_.symbol, #symbol, false);
#define VRAMKIT_LOAD_answered(symbol)
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) VRAMKIT_LOAD_##need(symbol)
#include "driver/manifest.def"
#undef VRAMKIT_CALL
#undef VRAMKIT_LOAD_required
#undef VRAMKIT_LOAD_optional
#undef VRAMKIT_LOAD_answered
    const auto keeps =
        reinterpret_cast<decltype(&gateKeepsMemory)>(dlsym(calls, "gateKeepsMemory"));
    driver->memory_moves_ = keeps != nullptr && keeps() != 0;
    if (!missing.empty()) {
        return OpenError{driver->path_ + " lacks driver calls that vramkit needs: " + missing +
                         ". It needs a driver for CUDA 12.0 or newer."};
    }
    return driver;
}

Driver::Opened Driver::open_path(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return OpenError{"cannot open " + path + ": " + last_error()};
    void* calls = handle;
    if (void* named = loaded_by_name(); named != nullptr) {
        if (const Library gate = behind(named); gate.driver == handle) calls = gate.calls;
    }
    return from_handles(calls, handle, loaded_path(handle, path));
}

Driver::Opened Driver::open_cuda() {
    void* named = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    Library found = named != nullptr ? behind(named) : Library{nullptr, nullptr, last_error()};
    if (found.driver != nullptr && simulated_library(found.driver)) {
        found = {nullptr, nullptr,
                 "the name libcuda.so.1 is taken by a simulated GPU in this process"};
        for (const char* path : kUsualDriverPaths) {
            found.calls = found.driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (found.driver != nullptr) break;
        }
    }
    if (found.driver == nullptr) return OpenError{"no NVIDIA driver: " + found.reason};
    return from_handles(found.calls, found.driver, loaded_path(found.driver, "libcuda.so.1"));
}

std::shared_ptr<Driver> Driver::of_table(void* handle, std::string path, const DriverTable& table) {
    std::shared_ptr<Driver> driver(new Driver(handle, std::move(path)));
    driver->table_ = table;
    return driver;
}

std::shared_ptr<Driver> Driver::with_calls(const DriverTable& table) const {
    std::shared_ptr<Driver> driver = of_table(handle_, path_, table);
    driver->memory_moves_ = true;
    return driver;
}

// The library stays loaded: NVIDIA's driver does not survive being unloaded.
Driver::~Driver() = default;

bool Driver::simulated() const { return simulated_library(handle_); }

void* Driver::symbol(const char* name) const { return dlsym(handle_, name); }

std::string error_name(CUresult code) {
    switch (code) {
#define VRAMKIT_RESULT(name, value, meaning) \
    case value:                              \
        return #name;
#include "driver/errors.def"
#undef VRAMKIT_RESULT
    }
    return "CUDA_ERROR_" + std::to_string(static_cast<int>(code));
}

std::string_view error_meaning(CUresult code) {
    switch (code) {
#define VRAMKIT_RESULT(name, value, meaning) \
    case value:                              \
        return meaning;
#include "driver/errors.def"
#undef VRAMKIT_RESULT
    }
    return "an error that this version of vramkit does not know";
}

}  // namespace vramkit
