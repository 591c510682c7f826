// Reads /proc/PID/stat.
#include "sim/card/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace vramkit::sim {
namespace {

struct Stat {
    char state = 0;
    long threads = 0;
    std::uint64_t started = 0;
};

std::optional<Stat> read_stat(pid_t pid) {
    std::array<char, 32> path;
    std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
    const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return std::nullopt;
    std::array<char, 1024> text{};
    const ssize_t got = read(file, text.data(), text.size() - 1);
    close(file);
    if (got <= 0) return std::nullopt;
    // The name, in brackets, may hold brackets and spaces itself.
    const char* after_name = std::strrchr(text.data(), ')');
    Stat stat;
    if (after_name == nullptr ||
        std::sscanf(after_name + 1,
                    " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s "
                    "%" SCNu64,
                    &stat.state, &stat.threads, &stat.started) != 3) {
        return std::nullopt;
    }
    return stat;
}

}  // namespace

std::optional<Process> this_process() {
    const pid_t pid = getpid();
    const std::optional<Stat> stat = read_stat(pid);
    if (!stat) return std::nullopt;
    return Process{pid, stat->started};
}

bool is_alive(const Process& process) {
    const std::optional<Stat> stat = read_stat(process.pid);
    if (!stat) return kill(process.pid, 0) == 0 || errno == EPERM;
    if (stat->started != process.started) return false;
    // The first thread of a process may end before the others do.
    const bool ended = stat->state == 'Z' || stat->state == 'X';
    return !ended || stat->threads > 1;
}

}  // namespace vramkit::sim
