#include "swap/host_room.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace vramkit::swap {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;  // version 1 writes a number above it

// Where a version of control groups keeps its figures.
struct Version {
    const char *name, *mount, *limit, *usage;
    // In memory.stat, with the groups below: the kernel drops it before it refuses memory.
    std::array<std::string_view, 2> file_cache;
};
constexpr Version kFirst{"cgroup v1",
                         "/sys/fs/cgroup/memory",
                         "/memory.limit_in_bytes",
                         "/memory.usage_in_bytes",
                         {"total_inactive_file", "total_active_file"}};
constexpr Version kSecond{"cgroup v2",
                          "/sys/fs/cgroup",
                          "/memory.max",
                          "/memory.current",
                          {"inactive_file", "active_file"}};

std::optional<std::uint64_t> read_integer(const std::string& path) {
    std::ifstream file(path);
    std::uint64_t value = 0;
    if (file >> value) return value;  // not "max"
    return {};
}

// visit(name, value) for each line of a table such as /proc/meminfo.
template <class Visit>
void read_table(const std::string& path, Visit visit) {
    std::ifstream file(path);
    std::string line, name;
    while (std::getline(file, line)) {
        std::istringstream fields(line);
        std::uint64_t value = 0;
        if (fields >> name >> value) visit(std::string_view(name), value);
    }
}

void narrow(HostRoom& room, std::uint64_t limit, std::uint64_t used, std::string by) {
    const std::uint64_t left = limit - std::min(used, limit);
    if (left < room.bytes) room = {left, std::move(by)};
}

void narrow_by_group(HostRoom& room, const std::string& folder, const Version& version) {
    const auto limit = read_integer(folder + version.limit);
    if (!limit || *limit >= kNoLimit) return;
    std::uint64_t cached = 0;
    read_table(folder + "/memory.stat", [&](std::string_view name, std::uint64_t value) {
        const auto& names = version.file_cache;
        if (std::find(names.begin(), names.end(), name) != names.end()) cached += value;
    });
    const std::uint64_t usage = read_integer(folder + version.usage).value_or(0);
    const std::uint64_t used = usage - std::min(cached, usage);
    narrow(room, *limit, used, std::string(version.name) + ", " + folder + version.limit);
}

// From our group up to the root. In a container the group's path is often not visible: then the
// mount's own root is ours.
void narrow_by_groups(HostRoom& room, const std::string& root, std::string path,
                      const Version& version) {
    for (;;) {
        path.resize(path.find_last_not_of('/') + 1);
        narrow_by_group(room, root + version.mount + path, version);
        if (path.empty()) return;
        path.resize(path.rfind('/'));
    }
}

bool has_memory(const std::string& controllers) {
    std::istringstream names(controllers);
    std::string name;
    while (std::getline(names, name, ',')) {
        if (name == "memory") return true;
    }
    return false;
}

}  // namespace

Failure HostRoom::refusal(std::uint64_t needed) const {
    const auto mebibytes = [](std::uint64_t count) { return std::to_string(count >> 20) + " MiB"; };
    Failure why = Failure::out_of_memory();
    why.message = "the host has " + mebibytes(bytes) + " left by " + by + ", of which " +
                  mebibytes(kSparedOnHost) + " are spared; swapped data needs " +
                  mebibytes(needed) + " more";
    return why;
}

HostRoom host_room(const std::string& root) {
    HostRoom room{std::numeric_limits<std::uint64_t>::max(), "no limit"};
    read_table(root + "/proc/meminfo", [&](std::string_view name, std::uint64_t kib) {
        if (name == "MemAvailable:") narrow(room, kib << 10, 0, "the available RAM");
    });
    // number:controllers:path
    std::ifstream groups(root + "/proc/self/cgroup");
    std::string number, controllers, path;
    while (std::getline(groups, number, ':') && std::getline(groups, controllers, ':') &&
           std::getline(groups, path)) {
        if (number == "0" && controllers.empty()) {
            narrow_by_groups(room, root, path, kSecond);
        } else if (has_memory(controllers)) {
            narrow_by_groups(room, root, path, kFirst);
        }
    }
    return room;
}

}  // namespace vramkit::swap
