// A driver is an object: one opened libcuda.so.1 with its table. Two can be open at once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "driver/table.h"

namespace vramkit {

// What went wrong on opening, as a sentence for the user.
struct OpenError {
    std::string message;
    bool bad_setting = false;  // of the environment; else there is no driver to be had
};

class Driver {
  public:
    using Opened = std::variant<std::shared_ptr<Driver>, OpenError>;

    // NVIDIA's driver, found as the system would find it. A simulated libcuda.so.1 that happens to
    // be loaded under that name is passed over, never used in its place. Calls go through the gate
    // where it is loaded.
    static Opened open_cuda();
    // A library at this path that speaks the ABI; used for the simulated GPU. Calls go through the
    // gate where it is loaded and forwards to this library.
    static Opened open_path(const std::string& path);

    // A library that is open, by the calls of this table.
    static std::shared_ptr<Driver> of_table(void* handle, std::string path,
                                            const DriverTable& table);

    // The same library by other calls, behind which memory moves as under a gate that keeps it.
    std::shared_ptr<Driver> with_calls(const DriverTable& table) const;

    ~Driver();
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

    const DriverTable& call() const { return table_; }
    // Of the driver itself.
    const std::string& path() const { return path_; }
    // True where the library exports the controls of the simulated GPU.
    bool simulated() const;
    // True where the gate keeps this program's memory: addresses stay, what is behind them changes.
    bool memory_moves() const { return memory_moves_; }
    // A symbol outside the manifest (the simulator's controls), or null. Asked of the driver
    // itself, not of a gate before it.
    void* symbol(const char* name) const;

  private:
    Driver(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
    static Opened from_handles(void* calls, void* library, std::string path);

    void* handle_;
    std::string path_;
    bool memory_moves_ = false;
    DriverTable table_;
};

// "CUDA_ERROR_OUT_OF_MEMORY" and what it means; "CUDA_ERROR_<code>" for one we do not know.
std::string error_name(CUresult code);
std::string_view error_meaning(CUresult code);

}  // namespace vramkit
