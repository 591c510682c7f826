// Opens a libcuda.so.1 and fills the table from the manifest.
#include "driver/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <type_traits>

#include "driver/usual_paths.h"

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

std::string last_error() {
    const char* text = dlerror();
    return text != nullptr ? text : "unknown error of the dynamic loader";
}

}  // namespace

Driver::Opened Driver::from_handle(void* handle, std::string path) {
    std::shared_ptr<Driver> driver(new Driver(handle, std::move(path)));
    std::string missing;
    [[maybe_unused]] const auto find = [&](auto& field, const char* name, bool required) {
        using Function = std::remove_reference_t<decltype(field)>;
        field = reinterpret_cast<Function>(dlsym(handle, name));
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
    if (!missing.empty()) {
        return OpenError{driver->path_ + " lacks driver calls that vramkit needs: " + missing +
                         ". It needs a driver for CUDA 12.0 or newer."};
    }
    return driver;
}

Driver::Opened Driver::open_path(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return OpenError{"cannot open " + path + ": " + last_error()};
    return from_handle(handle, loaded_path(handle, path));
}

Driver::Opened Driver::open_cuda() {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    std::string reason = handle == nullptr ? last_error() : "";
    if (handle != nullptr && dlsym(handle, kSimulatorMark) != nullptr) {
        dlclose(handle);
        handle = nullptr;
        reason = "the name libcuda.so.1 is taken by a simulated GPU in this process";
        for (const char* path : kUsualDriverPaths) {
            handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (handle != nullptr) break;
        }
    }
    if (handle == nullptr) return OpenError{"no NVIDIA driver: " + reason};
    return from_handle(handle, loaded_path(handle, "libcuda.so.1"));
}

// The library stays loaded: NVIDIA's driver does not survive being unloaded.
Driver::~Driver() = default;

bool Driver::simulated() const { return symbol(kSimulatorMark) != nullptr; }

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
