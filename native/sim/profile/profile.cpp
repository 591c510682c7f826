// Profiles: the cost of driver calls and the checks of values.
#include "sim/profile/profile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "sim/profile/profile_fields.h"

namespace vramkit::sim {
namespace {

// One name a manifest row; a call with several versions appears several times.
constexpr auto manifest_names = std::to_array<std::string_view>({
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) #base,
#include "driver/manifest.def"
#undef VRAMKIT_CALL
});

constexpr auto sorted_names = [] {
    auto names = manifest_names;
    std::ranges::sort(names);
    return names;
}();

constexpr std::size_t call_count = [] {
    auto names = sorted_names;
    return static_cast<std::size_t>(std::ranges::unique(names).begin() - names.begin());
}();

// Sorted, so that call_index can search by halving.
constexpr auto known_call_names = [] {
    std::array<std::string_view, call_count> names;
    std::ranges::unique_copy(sorted_names, names.begin());
    return names;
}();

}  // namespace

namespace fields {
namespace {

// Managed memory is known whole or not at all.
std::optional<Problem> find_managed_contradiction(const ManagedRates& m) {
    const std::pair<std::string_view, double> figures[] = {
        {"fault_bytes", static_cast<double>(m.fault_bytes)},
        {"fault_ns", m.fault_ns},
        {"faults_at_once", m.faults_at_once},
        {"populate_bytes_per_s", m.populate_bytes_per_s},
        {"prefetch_bytes_per_s", m.prefetch_bytes_per_s},
    };
    const auto known = [](const auto& each) { return each.second > 0; };
    if (std::ranges::any_of(figures, known) && !std::ranges::all_of(figures, known)) {
        const auto unknown = std::ranges::find_if_not(figures, known);
        return Problem{"managed", std::string(unknown->first), "0",
                       "must be given with the other figures of [managed], or all of them be 0 or "
                       "left out: no managed memory"};
    }
    if (m.given() && (m.fault_bytes < 4096 || (m.fault_bytes & (m.fault_bytes - 1)) != 0)) {
        return Problem{"managed", "fault_bytes", std::to_string(m.fault_bytes),
                       "must be a power of two, at least 4096"};
    }
    return {};
}

// Rules for single values beyond their bounds, and between values.
std::optional<Problem> find_contradiction(const Profile& p) {
    if ((p.granularity & (p.granularity - 1)) != 0) {
        return Problem{"", "granularity", std::to_string(p.granularity), "must be a power of two"};
    }
    if (p.total_memory < p.granularity) {
        return Problem{"", "total_memory", std::to_string(p.total_memory),
                       "must be at least the granularity, " + std::to_string(p.granularity)};
    }
    if ((p.link_width & (p.link_width - 1)) != 0) {
        return Problem{"", "link_width", std::to_string(p.link_width),
                       "must be 1, 2, 4, 8, 16 or 32"};
    }
    if (p.threads_per_multiprocessor % 32 != 0) {
        return Problem{"", "threads_per_multiprocessor",
                       std::to_string(p.threads_per_multiprocessor), "must be a multiple of 32"};
    }
    struct Pair {
        std::string_view slow_key;
        double slow;
        std::string_view fast_key;
        double fast;
    };
    const Link& l = p.link;
    const bool down = l.host_to_device_bytes_per_s >= l.device_to_host_bytes_per_s;
    const Pair pairs[] = {
        {"duplex_bytes_per_s", l.duplex_bytes_per_s,
         down ? "host_to_device_bytes_per_s" : "device_to_host_bytes_per_s",
         down ? l.host_to_device_bytes_per_s : l.device_to_host_bytes_per_s},
        {"pageable_host_to_device_bytes_per_s", l.pageable_host_to_device_bytes_per_s,
         "host_to_device_bytes_per_s", l.host_to_device_bytes_per_s},
        {"pageable_device_to_host_bytes_per_s", l.pageable_device_to_host_bytes_per_s,
         "device_to_host_bytes_per_s", l.device_to_host_bytes_per_s},
    };
    for (const Pair& pair : pairs) {
        if (pair.slow > pair.fast) {
            return Problem{
                "link", std::string(pair.slow_key), shown(pair.slow),
                "must be at most " + std::string(pair.fast_key) + ", " + shown(pair.fast)};
        }
    }
    const Compute& c = p.compute;
    const std::pair<std::string_view, double> rates[] = {
        {"matmul_flops_per_s", c.matmul_flops_per_s},
        {"attention_flops_per_s", c.attention_flops_per_s},
        {"weights_bytes_per_s", c.weights_bytes_per_s},
    };
    const auto known = [](const auto& each) { return each.second > 0; };
    if (std::ranges::any_of(rates, known) && !std::ranges::all_of(rates, known)) {
        const auto unknown = std::ranges::find_if_not(rates, known);
        return Problem{"compute", std::string(unknown->first), "0",
                       "must be given with the other two rates of [compute], or all three be 0 or "
                       "left out: not known"};
    }
    return find_managed_contradiction(p.managed);
}

}  // namespace

std::string in_quotes(std::string_view word) { return "\"" + std::string(word) + "\""; }

std::string shown(double number) {
    std::array<char, 32> buffer;
    const auto [end, code] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
    return code == std::errc{} ? std::string(buffer.data(), end) : "?";
}

std::string full_key(std::string_view section, std::string_view key) {
    return (section.empty() ? "" : "[" + std::string(section) + "] ") + std::string(key);
}

Complaint complain(double number, Bounds bounds, bool whole) {
    const bool low = bounds.above ? !(number > bounds.lowest) : !(number >= bounds.lowest);
    if (!low && number <= bounds.highest && (!whole || number == std::floor(number))) return {};
    const std::string start = whole ? "must be a whole number, " : "must be a number, ";
    return start + (bounds.above ? "greater than " : "at least ") + shown(bounds.lowest) +
           " and at most " + shown(bounds.highest);
}

Complaint complain(std::string_view text, TextRule rule) {
    const std::size_t longest = rule == TextRule::word ? 64 : 200;
    const bool good = std::ranges::all_of(text, [&](char c) {
        if (rule == TextRule::printable) return c >= ' ' && c <= '~';
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-';
    });
    if (good && !text.empty() && text.size() <= longest) return {};
    return "must be 1 to " + std::to_string(longest) +
           (rule == TextRule::word ? " letters, digits, dots, underscores or hyphens"
                                   : " printable ASCII characters");
}

Complaint complain(const CallCost& cost) {
    for (std::size_t i = 0; i < cost.points.size(); ++i) {
        const CostPoint& point = cost.points[i];
        if (complain(point.bytes, Bounds{0, largest_exact}, true)) {
            return "bytes must be a whole number, at least 0 and at most 2^53, not " +
                   shown(point.bytes);
        }
        if (complain(point.ns, duration, false)) {
            return "a cost must be at least 0 and at most 1e12 ns, not " + shown(point.ns);
        }
        if (i > 0 && !(point.bytes > cost.points[i - 1].bytes)) {
            return "bytes must increase from point to point, but " + shown(point.bytes) +
                   " follows " + shown(cost.points[i - 1].bytes);
        }
    }
    const std::size_t count = cost.points.size();
    if (count > 1 && cost.points[count - 1].ns < cost.points[count - 2].ns) {
        return "the cost must not fall between the last two points, because that slope goes on";
    }
    return {};
}

std::optional<Problem> find_problem(const Profile& p) {
    std::optional<Problem> problem;
    for_each_field(p, [&](std::string_view section, std::string_view key, auto& member, auto rule) {
        using Member = std::remove_cvref_t<decltype(member)>;
        if (problem) return;
        Complaint complaint;
        std::string value;
        if constexpr (is_text<Member>) {
            complaint = complain(member, rule);
            value = in_quotes(member);
        } else {
            complaint = complain(static_cast<double>(member), rule, std::is_integral_v<Member>);
            value = shown(static_cast<double>(member));
        }
        if (complaint) problem = Problem{std::string(section), std::string(key), value, *complaint};
    });
    if (problem) return problem;
    for (const bool busy : {false, true}) {
        const std::vector<CallCost>& costs = busy ? p.calls_busy : p.calls;
        const std::string section = busy ? "calls_busy" : "calls";
        if (costs.size() != call_count) {
            return Problem{section, "size", std::to_string(costs.size()),
                           "must be " + std::to_string(call_count) + ", one for each known call"};
        }
        for (std::size_t i = 0; i < call_count; ++i) {
            if (Complaint complaint = complain(costs[i])) {
                return Problem{section, std::string(known_call_names[i]), "[...]", *complaint};
            }
        }
    }
    return find_contradiction(p);
}

}  // namespace fields

double CallCost::at(std::uint64_t bytes) const {
    const auto size = static_cast<double>(bytes);
    if (points.size() == 1 || size <= points.front().bytes) return points.front().ns;
    std::size_t next = 1;
    while (next + 1 < points.size() && size > points[next].bytes) ++next;
    const CostPoint& low = points[next - 1];
    const CostPoint& high = points[next];
    return low.ns + (high.ns - low.ns) * ((size - low.bytes) / (high.bytes - low.bytes));
}

std::span<const std::string_view> Profile::known_calls() { return known_call_names; }

int Profile::call_index(std::string_view base_name) {
    const auto found = std::ranges::lower_bound(known_call_names, base_name);
    if (found == std::end(known_call_names) || *found != base_name) return -1;
    return static_cast<int>(found - std::begin(known_call_names));
}

double Profile::call_ns(int index, std::uint64_t bytes, bool busy) const {
    const auto at = static_cast<std::size_t>(index);  // -1 becomes larger than any size
    if (busy && at < calls_busy.size() && calls_busy[at].given()) return calls_busy[at].at(bytes);
    if (at < calls.size() && calls[at].given()) return calls[at].at(bytes);
    return default_call_ns;
}

double Profile::call_ns(std::string_view base_name, std::uint64_t bytes, bool busy) const {
    return call_ns(call_index(base_name), bytes, busy);
}

std::optional<std::string> Profile::validate() const {
    const std::optional<fields::Problem> problem = fields::find_problem(*this);
    if (!problem) return {};
    return fields::full_key(problem->section, problem->key) + " = " + problem->value + ": " +
           problem->complaint;
}

}  // namespace vramkit::sim
