// Reads VRAMKIT_DRIVER and opens what it names; nothing is simulated unless asked for.
#include "driver/default_driver.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "driver/shared.h"
#include "sim/control.h"

namespace vramkit {
namespace {

constexpr const char* kHint =
    " To work without an NVIDIA GPU, choose the simulated one: VRAMKIT_DRIVER=sim.";

struct DefaultDriver {
    std::mutex lock;
    bool first = false;  // to have the simulated GPU, which is not set up yet
    std::shared_ptr<Driver> driver;
};

// Never destroyed: pools outlive static objects.
DefaultDriver& the_default() {
    static DefaultDriver& made = *std::make_unique<DefaultDriver>().release();
    return made;
}

// The simulated GPU lies in sim/ beside this library.
std::string sim_path() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(&sim_path), &info) == 0) return "sim/libcuda.so.1";
    const std::string_view here = info.dli_fname;
    return std::string(here.substr(0, here.rfind('/') + 1)) + "sim/libcuda.so.1";
}

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

// The profile counts only for who opens the simulated GPU first: it belongs to others otherwise.
// The other settings of VRAMKIT_SIM stay.
// Empty, or why it failed.
std::string set_up(const Driver& driver, const std::string& profile) {
    const auto reset = reinterpret_cast<decltype(&simReset)>(driver.symbol("simReset"));
    std::array<char, 1024> reason{};
    const std::string settings = environment("VRAMKIT_SIM") + ",profile=" + profile;
    if (reset(settings.c_str(), reason.data(), reason.size()) == 0) return "";
    return reason.data();
}

Driver::Opened open(const std::string& spec, bool& first) {
    const bool simulated = spec == "sim" || (spec.starts_with("sim:") && spec.size() > 4);
    if (!simulated && spec != "cuda") {
        return OpenError{"VRAMKIT_DRIVER is '" + spec +
                             "'; it may be cuda, sim or sim:PROFILE, where PROFILE is the name of "
                             "one that is installed or a path to a .toml",
                         true};
    }
    Shared found = simulated ? share_path(sim_path()) : share_cuda();
    if (const auto* error = std::get_if<OpenError>(&found)) {
        return OpenError{error->message + (simulated ? "" : "." + std::string(kHint))};
    }
    const auto [driver, unused] = std::get<SharedDriver>(std::move(found));
    first |= unused;
    if (simulated && !driver->simulated()) {
        return OpenError{driver->path() + " is not the simulated GPU; reinstall vramkit"};
    }
    if (first && simulated && spec != "sim") {
        if (std::string reason = set_up(*driver, spec.substr(4)); !reason.empty()) {
            return OpenError{std::move(reason), true};
        }
    }
    first = false;
    const CUresult result = driver->call().cuInit(0);
    if (result != CUDA_SUCCESS) {
        return OpenError{"cuInit: " + error_name(result) + ", " +
                         std::string(error_meaning(result)) +
                         (simulated ? "" : "." + std::string(kHint))};
    }
    return driver;
}

}  // namespace

Driver::Opened default_driver() {
    DefaultDriver& one = the_default();
    const std::lock_guard guard(one.lock);
    if (one.driver == nullptr) {
        const std::string spec = environment("VRAMKIT_DRIVER");
        Driver::Opened opened = open(spec.empty() ? "cuda" : spec, one.first);
        if (std::holds_alternative<OpenError>(opened)) return opened;
        one.driver = std::get<std::shared_ptr<Driver>>(std::move(opened));
    }
    return one.driver;
}

}  // namespace vramkit
