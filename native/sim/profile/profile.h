// What the simulated GPU knows of a card and its host: sizes, rates, the cost of driver calls.
//
// A profile is a TOML file (docs/profiles.md). Rates are bytes per second, times are nanoseconds.
// The readers never throw: an error is a text that names the file, line, key and what is allowed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace vramkit::sim {

// One point of a cost that depends on size.
struct CostPoint {
    double bytes = 0;
    double ns = 0;
};

// Host time of one driver call: a constant (one point) or a piecewise-linear table.
// Below the first point the first cost holds; beyond the last the last slope goes on.
// Invariants: bytes strictly increase; costs and the last slope are >= 0, so no cost is negative.
struct CallCost {
    std::vector<CostPoint> points;  // empty: the profile gives none

    bool given() const { return !points.empty(); }
    // Requires given(). Linear in the number of points, which is a handful.
    double at(std::uint64_t bytes) const;
};

// [link]: the host's memory, the bus, and copies on the card.
struct Link {
    double host_to_device_bytes_per_s = 0;           // pinned memory, this direction alone
    double device_to_host_bytes_per_s = 0;           // pinned memory, this direction alone
    double duplex_bytes_per_s = 0;                   // each way while both directions are active
    double pageable_host_to_device_bytes_per_s = 0;  // staging by the driver included
    double pageable_device_to_host_bytes_per_s = 0;
    double copy_latency_ns = 0;               // fixed part of every copy, on the engine
    double device_to_device_bytes_per_s = 0;  // bytes copied: each is read once and written once
    double memset_bytes_per_s = 0;            // bytes written
};

// [kernels]: what happens on the card around and inside a kernel.
struct Kernels {
    double launch_latency_ns = 0;    // from ready (all it waits for is done) to running
    double minimum_duration_ns = 0;  // no kernel runs shorter than this
    // Bytes read plus bytes written by each of the built-in kernels that stream through memory.
    double fill_bytes_per_s = 0;
    double add_bytes_per_s = 0;
    double sweep_bytes_per_s = 0;
    double checksum_bytes_per_s = 0;
    double event_record_ns = 0;   // on the card, from reached to recorded
    double event_wait_ns = 0;     // on the card, from recorded until the waiter continues
    double host_function_ns = 0;  // from ready to the call of a host function
};

// [compute]: how fast the card computes with weights in bf16, for predictions of whole models. The
// simulated GPU itself runs no such kernel. Optional; 0: not known. All are known, or none.
struct Compute {
    double matmul_flops_per_s = 0;     // many tokens: bound by arithmetic
    double attention_flops_per_s = 0;  // causal: the half of the scores that is not needed is free
    double weights_bytes_per_s = 0;    // few tokens: bound by reading the weights
};

// [sharing]: what it costs that several processes use the card. Optional; 0: nothing.
struct Sharing {
    double time_slice_loss = 0;  // share of the time lost while processes compute in turn
};

// [managed]: pages of managed memory on their way. Optional; all 0: the card has no managed memory.
struct ManagedRates {
    std::uint64_t fault_bytes = 0;    // that one page fault brings in; a power of two from 4096
    double fault_ns = 0;              // time of one
    double faults_at_once = 0;        // how many are served at a time
    double populate_bytes_per_s = 0;  // pages on the card that have no data anywhere yet
    double prefetch_bytes_per_s = 0;  // in bulk, each way; at most the link's rate is had
    std::uint64_t prefetch_evicts =
        0;  // 1: a prefetch to a full card evicts; 0: it fills what is free

    bool given() const { return fault_bytes > 0; }
    double fault_bytes_per_s() const {
        return static_cast<double>(fault_bytes) * faults_at_once / fault_ns * 1e9;
    }
};

struct Profile {
    std::string name;         // letters, digits, . _ -; what reports call the profile
    std::string device_name;  // what cuDeviceGetName answers

    int compute_major = 0;
    int compute_minor = 0;
    int multiprocessors = 0;
    int threads_per_multiprocessor = 0;
    std::uint64_t total_memory = 0;  // bytes
    std::uint64_t granularity = 0;   // bytes, of virtual memory management; a power of two
    int copy_engines = 0;
    int link_generation = 0;  // PCIe
    int link_width = 0;       // lanes
    int l2_bytes = 0;
    int clock_khz = 0;
    int memory_clock_khz = 0;
    int memory_bus_bits = 0;
    int driver_version = 0;  // as cuDriverGetVersion answers: 13000 is CUDA 13.0

    Link link;
    Kernels kernels;
    Compute compute;
    Sharing sharing;
    ManagedRates managed;

    double default_call_ns = 0;        // [calls] default: every call without an entry of its own
    std::vector<CallCost> calls;       // [calls], by call index; one for each of known_calls()
    std::vector<CallCost> calls_busy;  // [calls_busy], by call index; where not given, as in calls

    // Base names (no _v2, no _ptsz) that [calls] and [calls_busy] may hold: those of the manifest,
    // sorted, each once.
    static std::span<const std::string_view> known_calls();

    // Position in known_calls(), the same for every profile; -1 for a name that is not there.
    // Logarithmic in the number of calls: resolve once, keep the index.
    static int call_index(std::string_view base_name);

    // Host time of one call. bytes: the size the call is about (0 for calls without one).
    // busy: a kernel is running on the device. An index of -1 costs default_call_ns.
    double call_ns(int index, std::uint64_t bytes, bool busy) const;
    double call_ns(std::string_view base_name, std::uint64_t bytes, bool busy) const;

    // What is wrong with the values, for a profile made or changed in code; nothing when it is
    // sound. A profile that load_profile, parse_profile or find_profile returns is sound.
    std::optional<std::string> validate() const;
};

using ProfileOrError = std::variant<Profile, std::string>;

// Reads one file. `extends` is looked for beside the file, then in directory.
ProfileOrError load_profile(const std::filesystem::path& path,
                            const std::filesystem::path& directory = {});

// Reads a text; origin stands for the file's name in errors. `extends` is looked for in directory.
ProfileOrError parse_profile(std::string_view text, std::string_view origin,
                             const std::filesystem::path& directory = {});

// "h200" is directory/h200.toml; whatever has a / or ends in .toml is a path.
ProfileOrError find_profile(std::string_view name_or_path, const std::filesystem::path& directory);

}  // namespace vramkit::sim
