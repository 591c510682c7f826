// Reads VRAMKIT_DRIVER and opens what it names; nothing is simulated unless asked for.
#include "capi/default_driver.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "capi/errors.h"
#include "driver/shared.h"
#include "sim/control.h"

namespace vramkit::capi {
namespace {

constexpr const char* kHint =
    " To work without an NVIDIA GPU, choose the simulated one: VRAMKIT_DRIVER=sim.";

struct Opened {
    std::mutex lock;
    bool first = false;  // to have the simulated GPU, which is not set up yet
    std::shared_ptr<Driver> driver;
};

// Never destroyed: pools outlive static objects.
Opened& opened() {
    static Opened& made = *std::make_unique<Opened>().release();
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
bool set_up(const Driver& driver, const std::string& profile) {
    const auto reset = reinterpret_cast<decltype(&simReset)>(driver.symbol("simReset"));
    std::array<char, 1024> reason{};
    const std::string settings = environment("VRAMKIT_SIM") + ",profile=" + profile;
    if (reset(settings.c_str(), reason.data(), reason.size()) == 0) return true;
    fail(VRAMKIT_BAD_VALUE, reason.data());
    return false;
}

std::shared_ptr<Driver> open(const std::string& spec, bool& first) {
    const bool simulated = spec == "sim" || (spec.starts_with("sim:") && spec.size() > 4);
    if (!simulated && spec != "cuda") {
        fail(VRAMKIT_BAD_VALUE, "VRAMKIT_DRIVER is '" + spec +
                                    "'; it may be cuda, sim or sim:PROFILE, where PROFILE is the "
                                    "name of one that is installed or a path to a .toml");
        return nullptr;
    }
    Shared found = simulated ? share_path(sim_path()) : share_cuda();
    if (const auto* error = std::get_if<OpenError>(&found)) {
        fail(VRAMKIT_NO_DRIVER, error->message + (simulated ? "" : "." + std::string(kHint)));
        return nullptr;
    }
    const auto [driver, unused] = std::get<SharedDriver>(std::move(found));
    first |= unused;
    if (simulated && !driver->simulated()) {
        fail(VRAMKIT_NO_DRIVER, driver->path() + " is not the simulated GPU; reinstall vramkit");
        return nullptr;
    }
    if (first && simulated && spec != "sim" && !set_up(*driver, spec.substr(4))) return nullptr;
    first = false;
    const CUresult result = driver->call().cuInit(0);
    if (result != CUDA_SUCCESS) {
        const pool::Failure why{pool::Failure::Kind::driver, result, "cuInit", ""};
        fail(VRAMKIT_NO_DRIVER, words(why) + (simulated ? "" : "." + std::string(kHint)));
        return nullptr;
    }
    return driver;
}

}  // namespace

std::shared_ptr<Driver> default_driver() {
    Opened& one = opened();
    const std::lock_guard guard(one.lock);
    if (one.driver == nullptr) {
        const std::string spec = environment("VRAMKIT_DRIVER");
        one.driver = open(spec.empty() ? "cuda" : spec, one.first);
    }
    return one.driver;
}

}  // namespace vramkit::capi
