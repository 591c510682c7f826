// What the native benchmarks stand on: one opened GPU, real or simulated, with its built-in
// kernels, its host clock, and a check of every driver call's result.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "driver/driver.h"

namespace bench {

inline constexpr std::size_t KiB = 1024;
inline constexpr std::size_t MiB = 1024 * KiB;
inline constexpr std::size_t GiB = 1024 * MiB;

// A sentence for the user: a driver call that failed, or a setting that cannot work.
class Failure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct GpuOptions {
    bool simulated = false;
    std::string library;   // of the simulated GPU
    std::string settings;  // of the simulated GPU, as simReset takes them
    std::string kernels;   // file with the PTX text of the built-in kernels
    int device = 0;
};

class Gpu {
  public:
    // Opens the driver, makes the device's primary context current and loads the kernels.
    // Throws Failure.
    explicit Gpu(const GpuOptions& options);
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    const vramkit::DriverTable& call() const { return driver_->call(); }
    const vramkit::Driver& driver() const { return *driver_; }
    CUdevice device() const { return device_; }
    bool simulated() const { return driver_->simulated(); }
    std::string name() const;
    int version() const;
    unsigned multiprocessors() const { return multiprocessors_; }
    // What simSettings answers, as JSON text; "null" on a real card.
    std::string settings() const;

    void check(CUresult code, const char* symbol) const {
        if (code != CUDA_SUCCESS) [[unlikely]]
            fail(code, symbol);
    }
    // For destructors, which cannot throw: says what failed and makes clean() false.
    void note(CUresult code, const char* symbol) noexcept;
    bool clean() const { return clean_; }

    // Host time in nanoseconds: the simulated host's clock, or the steady clock.
    double now() const;
    // Keeps the host busy for this long: simulated time goes on, or the processor spins.
    void pass(double nanoseconds) const;

    // Pinned host memory of at least this size, kept until the end and shared by all that ask.
    void* pinned(std::size_t bytes);

    void spin(std::uint64_t nanoseconds, unsigned blocks, unsigned threads, CUstream stream) const {
        launch(spin_, blocks, threads, stream, nanoseconds);
    }
    CUfunction spin_kernel() const { return spin_; }
    void fill(CUdeviceptr destination, std::uint64_t words, std::uint32_t value,
              CUstream stream) const {
        launch(fill_, full_grid(), kGridThreads, stream, destination, words, value);
    }
    void add(CUdeviceptr destination, CUdeviceptr left, CUdeviceptr right, std::uint64_t words,
             CUstream stream) const {
        launch(add_, full_grid(), kGridThreads, stream, destination, left, right, words);
    }
    void sweep(CUdeviceptr data, std::uint64_t words, std::uint32_t rounds, CUstream stream) const {
        launch(sweep_, full_grid(), kGridThreads, stream, data, words, rounds);
    }

  private:
    static constexpr unsigned kGridThreads = 256;

    [[noreturn]] void fail(CUresult code, const char* symbol) const;
    // As many blocks of kGridThreads as run at once: 2,048 threads on each multiprocessor.
    unsigned full_grid() const { return multiprocessors_ * 8; }

    template <class... Arguments>
    void launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream,
                Arguments... arguments) const {
        void* parameters[] = {&arguments...};
        check(call().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters,
                                    nullptr),
              "cuLaunchKernel");
    }

    std::shared_ptr<vramkit::Driver> driver_;
    double (*simulated_now_)() = nullptr;
    int (*simulated_advance_)(double) = nullptr;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    CUmodule module_ = nullptr;
    CUfunction spin_ = nullptr;
    CUfunction fill_ = nullptr;
    CUfunction add_ = nullptr;
    CUfunction sweep_ = nullptr;
    unsigned multiprocessors_ = 0;
    void* pinned_ = nullptr;
    std::size_t pinned_bytes_ = 0;
    bool clean_ = true;
};

// Calls a driver function by its symbol and throws Failure where it does not succeed.
#define GPU_CALL(gpu, symbol, ...) (gpu).check((gpu).call().symbol(__VA_ARGS__), #symbol)

namespace detail {

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Failure("cannot read the kernels at " + path + ": " + std::strerror(errno));
    return std::string(std::istreambuf_iterator<char>(file), {});
}

template <class Function>
Function control(const vramkit::Driver& driver, const char* name) {
    void* symbol = driver.symbol(name);
    if (symbol == nullptr) throw Failure(driver.path() + " does not export " + name);
    return reinterpret_cast<Function>(symbol);
}

inline std::shared_ptr<vramkit::Driver> open_driver(const GpuOptions& options) {
    auto opened = options.simulated ? vramkit::Driver::open_path(options.library)
                                    : vramkit::Driver::open_cuda();
    if (auto* error = std::get_if<vramkit::OpenError>(&opened)) throw Failure(error->message);
    auto driver = std::get<std::shared_ptr<vramkit::Driver>>(opened);
    if (options.simulated && !driver->simulated()) {
        throw Failure(driver->path() + " is not a simulated GPU: it does not export simReset");
    }
    return driver;
}

inline void reset(const vramkit::Driver& driver, const std::string& settings) {
    const auto sim_reset = control<int (*)(const char*, char*, std::size_t)>(driver, "simReset");
    char reason[1024] = "";
    if (sim_reset(settings.c_str(), reason, sizeof reason) != 0) {
        throw Failure("the simulated GPU refused the settings \"" + settings + "\": " + reason);
    }
}

}  // namespace detail

inline Gpu::Gpu(const GpuOptions& options) : driver_(detail::open_driver(options)) {
    if (options.simulated) {
        simulated_now_ = detail::control<double (*)()>(*driver_, "simNow");
        simulated_advance_ = detail::control<int (*)(double)>(*driver_, "simAdvance");
        detail::reset(*driver_, options.settings);
    }
    GPU_CALL(*this, cuInit, 0);
    GPU_CALL(*this, cuDeviceGet, &device_, options.device);
    GPU_CALL(*this, cuDevicePrimaryCtxRetain, &context_, device_);
    GPU_CALL(*this, cuCtxSetCurrent, context_);
    int count = 0;
    GPU_CALL(*this, cuDeviceGetAttribute, &count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
             device_);
    multiprocessors_ = static_cast<unsigned>(count);
    const std::string kernels = detail::read_text(options.kernels);
    GPU_CALL(*this, cuModuleLoadData, &module_, kernels.c_str());
    GPU_CALL(*this, cuModuleGetFunction, &spin_, module_, "vk_spin");
    GPU_CALL(*this, cuModuleGetFunction, &fill_, module_, "vk_fill");
    GPU_CALL(*this, cuModuleGetFunction, &add_, module_, "vk_add");
    GPU_CALL(*this, cuModuleGetFunction, &sweep_, module_, "vk_sweep");
}

inline Gpu::~Gpu() {
    if (pinned_ != nullptr) note(call().cuMemFreeHost(pinned_), "cuMemFreeHost");
    note(call().cuModuleUnload(module_), "cuModuleUnload");
    note(call().cuDevicePrimaryCtxRelease_v2(device_), "cuDevicePrimaryCtxRelease_v2");
}

inline std::string Gpu::name() const {
    char text[256] = "";
    GPU_CALL(*this, cuDeviceGetName, text, sizeof text, device_);
    return text;
}

inline int Gpu::version() const {
    int version = 0;
    GPU_CALL(*this, cuDriverGetVersion, &version);
    return version;
}

inline std::string Gpu::settings() const {
    if (!simulated()) return "null";
    const auto ask = detail::control<std::size_t (*)(char*, std::size_t)>(*driver_, "simSettings");
    std::vector<char> text(ask(nullptr, 0) + 1);
    ask(text.data(), text.size());
    return text.data();
}

inline void Gpu::fail(CUresult code, const char* symbol) const {
    throw Failure(std::string(symbol) + " failed: " + vramkit::error_name(code) + " (" +
                  std::to_string(static_cast<int>(code)) +
                  "): " + std::string(vramkit::error_meaning(code)));
}

inline void Gpu::note(CUresult code, const char* symbol) noexcept {
    if (code == CUDA_SUCCESS) return;
    clean_ = false;
    std::fprintf(stderr, "%s failed while cleaning up: %s\n", symbol,
                 vramkit::error_name(code).c_str());
}

inline double Gpu::now() const {
    if (simulated_now_ != nullptr) return simulated_now_();
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

inline void Gpu::pass(double nanoseconds) const {
    const double end = now() + nanoseconds;
    for (double left = nanoseconds; left > 0; left = end - now()) {
        // At least one nanosecond at a time, so that rounding cannot keep the loop alive.
        if (simulated_advance_ != nullptr) simulated_advance_(left > 1 ? left : 1);
    }
}

inline void* Gpu::pinned(std::size_t bytes) {
    if (bytes > pinned_bytes_) {
        if (pinned_ != nullptr) GPU_CALL(*this, cuMemFreeHost, std::exchange(pinned_, nullptr));
        pinned_bytes_ = 0;
        GPU_CALL(*this, cuMemHostAlloc, &pinned_, bytes, VRAMKIT_MEMHOSTALLOC_PORTABLE);
        pinned_bytes_ = bytes;
    }
    return pinned_;
}

}  // namespace bench
