// The keys of a profile with what each may hold, shared by the reader and by Profile::validate.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "sim/profile/profile.h"

namespace vramkit::sim::fields {

// A complaint reads on from "key = value: ": "must be ...".
using Complaint = std::optional<std::string>;

struct Bounds {
    double lowest;
    double highest;
    bool above = false;  // lowest itself is not allowed
};

inline constexpr double largest_exact =
    9007199254740992.0;  // 2^53: whole numbers are exact up to here

inline constexpr Bounds rate{0, 1e15, true};
inline constexpr Bounds duration{0, 1e12};
inline constexpr Bounds rate_if_known{0, 1e18};
inline constexpr Bounds loss{0, 0.9};

enum class TextRule { word, printable };

// The shortest text that reads back as the same number, in any locale.
std::string shown(double number);
std::string in_quotes(std::string_view word);

// "[link] duplex_bytes_per_s", or the key alone where it stands before any section.
std::string full_key(std::string_view section, std::string_view key);

Complaint complain(double number, Bounds bounds, bool whole);
Complaint complain(std::string_view text, TextRule rule);
Complaint complain(const CallCost& cost);

// Something wrong with a sound-looking value: where, what it is, and the complaint.
struct Problem {
    std::string section;
    std::string key;
    std::string value;
    std::string complaint;
};

// The first thing that is wrong with a profile: a value out of bounds, or two that contradict.
std::optional<Problem> find_problem(const Profile& profile);

// Whether a profile that extends no other may leave a section's keys out.
inline bool optional_section(std::string_view section) {
    return section == "compute" || section == "sharing" || section == "managed";
}

template <class Member>
constexpr bool is_text = std::is_same_v<std::remove_cv_t<Member>, std::string>;

// The one list of keys: visit(section, key, member, bounds or rule) for each plain value of a
// profile.
template <class SomeProfile, class Visit>
void for_each_field(SomeProfile& p, Visit&& visit) {
    visit("", "name", p.name, TextRule::word);
    visit("", "device_name", p.device_name, TextRule::printable);
    visit("", "compute_major", p.compute_major, Bounds{1, 99});
    visit("", "compute_minor", p.compute_minor, Bounds{0, 9});
    visit("", "multiprocessors", p.multiprocessors, Bounds{1, 4096});
    visit("", "threads_per_multiprocessor", p.threads_per_multiprocessor, Bounds{32, 65536});
    visit("", "total_memory", p.total_memory, Bounds{1 << 20, largest_exact});
    visit("", "granularity", p.granularity, Bounds{1 << 16, 1 << 30});
    visit("", "copy_engines", p.copy_engines, Bounds{1, 16});
    visit("", "link_generation", p.link_generation, Bounds{1, 8});
    visit("", "link_width", p.link_width, Bounds{1, 32});
    visit("", "l2_bytes", p.l2_bytes, Bounds{0, 2147483647});
    visit("", "clock_khz", p.clock_khz, Bounds{1, 2147483647});
    visit("", "memory_clock_khz", p.memory_clock_khz, Bounds{1, 2147483647});
    visit("", "memory_bus_bits", p.memory_bus_bits, Bounds{1, 65536});
    visit("", "driver_version", p.driver_version, Bounds{11000, 99990});
    auto& l = p.link;
    visit("link", "host_to_device_bytes_per_s", l.host_to_device_bytes_per_s, rate);
    visit("link", "device_to_host_bytes_per_s", l.device_to_host_bytes_per_s, rate);
    visit("link", "duplex_bytes_per_s", l.duplex_bytes_per_s, rate);
    visit("link", "pageable_host_to_device_bytes_per_s", l.pageable_host_to_device_bytes_per_s,
          rate);
    visit("link", "pageable_device_to_host_bytes_per_s", l.pageable_device_to_host_bytes_per_s,
          rate);
    visit("link", "copy_latency_ns", l.copy_latency_ns, duration);
    visit("link", "device_to_device_bytes_per_s", l.device_to_device_bytes_per_s, rate);
    visit("link", "memset_bytes_per_s", l.memset_bytes_per_s, rate);
    auto& k = p.kernels;
    visit("kernels", "launch_latency_ns", k.launch_latency_ns, duration);
    visit("kernels", "minimum_duration_ns", k.minimum_duration_ns, duration);
    visit("kernels", "fill_bytes_per_s", k.fill_bytes_per_s, rate);
    visit("kernels", "add_bytes_per_s", k.add_bytes_per_s, rate);
    visit("kernels", "sweep_bytes_per_s", k.sweep_bytes_per_s, rate);
    visit("kernels", "checksum_bytes_per_s", k.checksum_bytes_per_s, rate);
    visit("kernels", "event_record_ns", k.event_record_ns, duration);
    visit("kernels", "event_wait_ns", k.event_wait_ns, duration);
    visit("kernels", "host_function_ns", k.host_function_ns, duration);
    auto& c = p.compute;
    visit("compute", "matmul_flops_per_s", c.matmul_flops_per_s, rate_if_known);
    visit("compute", "attention_flops_per_s", c.attention_flops_per_s, rate_if_known);
    visit("compute", "weights_bytes_per_s", c.weights_bytes_per_s, rate_if_known);
    visit("sharing", "time_slice_loss", p.sharing.time_slice_loss, loss);
    auto& m = p.managed;
    visit("managed", "fault_bytes", m.fault_bytes, Bounds{0, 1 << 30});
    visit("managed", "fault_ns", m.fault_ns, duration);
    visit("managed", "faults_at_once", m.faults_at_once, Bounds{0, 1e6});
    visit("managed", "populate_bytes_per_s", m.populate_bytes_per_s, rate_if_known);
    visit("managed", "prefetch_bytes_per_s", m.prefetch_bytes_per_s, rate_if_known);
    visit("managed", "prefetch_evicts", m.prefetch_evicts, Bounds{0, 1});
    visit("calls", "default", p.default_call_ns, duration);
}

}  // namespace vramkit::sim::fields
