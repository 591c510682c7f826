// The simulated GPU for native tests: its driver table, its controls, and a machine with round
// figures.
#ifndef VRAMKIT_TESTS_NATIVE_GPU_H
#define VRAMKIT_TESTS_NATIVE_GPU_H

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "driver/driver.h"
#include "sim/control.h"
#include "sim/machine/kernels.h"
#include "testing.h"

namespace gpu {

namespace fs = std::filesystem;

// A folder that is removed with everything in it.
class Folder {
  public:
    Folder() {
        std::string pattern = (fs::temp_directory_path() / "vramkit-XXXXXX").string();
        REQUIRE(::mkdtemp(pattern.data()) != nullptr);
        path = pattern;
    }
    ~Folder() { fs::remove_all(path); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    fs::path path;
};

// Figures of the profile below. Rates are bytes a nanosecond, times nanoseconds.
inline constexpr double kToDevice = 4;
inline constexpr double kToHost = 2;
inline constexpr double kDuplex = 1;
inline constexpr double kSet = 16;
inline constexpr double kCopyLatency = 1000;
inline constexpr double kLaunchLatency = 500;
inline constexpr double kRecord = 10;
inline constexpr double kWait = 20;
inline constexpr unsigned kMultiprocessors = 10;
inline constexpr unsigned kThreads = 1024;  // of a multiprocessor, and of the blocks below

// Calls cost nothing: every time below comes from the card.
inline constexpr const char* kRoundProfile = R"(
name = "round"
device_name = "Round figures"
compute_major = 9
compute_minor = 0
multiprocessors = 10
threads_per_multiprocessor = 1024
total_memory = 200_000_000_000
granularity = 2_097_152
copy_engines = 3
link_generation = 5
link_width = 16
l2_bytes = 0
clock_khz = 1_000_000
memory_clock_khz = 1_000_000
memory_bus_bits = 1024
driver_version = 13000

[link]
host_to_device_bytes_per_s = 4e9
device_to_host_bytes_per_s = 2e9
duplex_bytes_per_s = 1e9
pageable_host_to_device_bytes_per_s = 0.5e9
pageable_device_to_host_bytes_per_s = 0.25e9
copy_latency_ns = 1000
device_to_device_bytes_per_s = 8e9
memset_bytes_per_s = 16e9

[kernels]
launch_latency_ns = 500
minimum_duration_ns = 100
fill_bytes_per_s = 10e9
add_bytes_per_s = 10e9
sweep_bytes_per_s = 10e9
checksum_bytes_per_s = 10e9
event_record_ns = 10
event_wait_ns = 20
host_function_ns = 300

[calls]
default = 0
)";

struct Controls {
    decltype(&simReset) reset;
    decltype(&simNow) now;
    decltype(&simAdvance) advance;
    decltype(&simHostAlias) host_alias;
    decltype(&simReports) reports;
    decltype(&simCallCounts) call_counts;
    decltype(&simResetCallCounts) reset_call_counts;
    decltype(&simLiveObjects) live_objects;
    decltype(&simTimelineStart) timeline_start;
    decltype(&simTimeline) timeline;
    decltype(&simInject) inject;
    decltype(&simClearFaults) clear_faults;
    decltype(&simLoseDevice) lose_device;

    explicit Controls(const vramkit::Driver& driver) {
        const auto find = [&](auto& control, const char* name) {
            control =
                reinterpret_cast<std::remove_reference_t<decltype(control)>>(driver.symbol(name));
            REQUIRE(control != nullptr);
        };
        find(reset, "simReset");
        find(now, "simNow");
        find(advance, "simAdvance");
        find(host_alias, "simHostAlias");
        find(reports, "simReports");
        find(call_counts, "simCallCounts");
        find(reset_call_counts, "simResetCallCounts");
        find(live_objects, "simLiveObjects");
        find(timeline_start, "simTimelineStart");
        find(timeline, "simTimeline");
        find(inject, "simInject");
        find(clear_faults, "simClearFaults");
        find(lose_device, "simLoseDevice");
    }
};

inline std::shared_ptr<vramkit::Driver> open(const std::string& path = VRAMKIT_SIM_PATH) {
    auto opened = vramkit::Driver::open_path(path);
    if (const auto* error = std::get_if<vramkit::OpenError>(&opened)) {
        testing::note(false, path.c_str(), 0, error->message);
        throw testing::RequirementFailed();
    }
    return std::get<std::shared_ptr<vramkit::Driver>>(opened);
}

// Opened once for the program; no call is made.
inline const vramkit::Driver& driver() {
    static const std::shared_ptr<vramkit::Driver> opened = open();
    return *opened;
}

inline const vramkit::DriverTable& cu() { return driver().call(); }

inline const Controls& sim() {
    static const Controls controls(driver());
    return controls;
}

inline std::string text_of(size_t (*fill)(char*, size_t)) {
    std::string text(fill(nullptr, 0), '\0');
    // It may have grown in the meantime; what did not fit is cut off.
    const size_t now = fill(text.data(), text.size() + 1);
    text.resize(std::min(now, text.size()));
    return text;
}

inline void reset(const std::string& settings) {
    char error[400];
    if (sim().reset(settings.c_str(), error, sizeof error) != 0) {
        testing::note(false, settings.c_str(), 0, error);
        throw testing::RequirementFailed();
    }
}

// Resets to the round figures; the profile's file lives as long as the program.
inline void reset_round(const std::string& more = "") {
    static const Folder folder;
    static const fs::path file = [] {
        std::ofstream(folder.path / "round.toml") << kRoundProfile;
        return folder.path / "round.toml";
    }();
    reset("profile=" + file.string() + (more.empty() ? "" : "," + more));
}

// Makes the first device's primary context current on this thread, initialising the driver first.
inline CUcontext use_device(int ordinal = 0) {
    CUcontext context = nullptr;
    CHECK_EQUAL(cu().cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuDevicePrimaryCtxRetain(&context, ordinal), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuCtxSetCurrent(context), CUDA_SUCCESS);
    return context;
}

inline CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING, int priority = 0) {
    CUstream stream = nullptr;
    CHECK_EQUAL(cu().cuStreamCreateWithPriority(&stream, flags, priority), CUDA_SUCCESS);
    return stream;
}

inline CUevent make_event() {
    CUevent event = nullptr;
    CHECK_EQUAL(cu().cuEventCreate(&event, CU_EVENT_DEFAULT), CUDA_SUCCESS);
    return event;
}

inline CUdeviceptr make_memory(size_t bytes) {
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(cu().cuMemAlloc_v2(&pointer, bytes), CUDA_SUCCESS);
    return pointer;
}

inline void* make_pinned(size_t bytes) {
    void* pointer = nullptr;
    CHECK_EQUAL(cu().cuMemHostAlloc(&pointer, bytes, 0), CUDA_SUCCESS);
    return pointer;
}

// A function of the built-in kernels, from a module of the current context.
inline CUfunction kernel(const char* name) {
    const std::string image(vramkit::sim::kModuleMark);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CHECK_EQUAL(cu().cuModuleLoadData(&module, image.c_str()), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    return function;
}

// Keeps `blocks` multiprocessors of the round card busy for a time.
inline CUresult spin(CUfunction function, std::uint64_t nanoseconds, unsigned blocks,
                     CUstream stream) {
    void* parameters[] = {&nanoseconds};
    return cu().cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters,
                               nullptr);
}

}  // namespace gpu

#endif
