// Which process a row of a shared card belongs to, and whether it still lives.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace vramkit::sim {

// A number of a process comes back after its end; with the time of its start it is one process for
// ever.
struct Process {
    pid_t pid = 0;
    std::uint64_t started = 0;  // clock ticks since the system started: field 22 of /proc/PID/stat

    bool operator==(const Process&) const = default;
};

// Nothing where /proc does not tell.
std::optional<Process> this_process();

// One that was killed and waits for its parent to notice is dead: its memory is gone. About 10 us.
bool is_alive(const Process& process);

}  // namespace vramkit::sim
