// How much more host memory this process can get before the kernel ends a program for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/failure.h"

namespace vramkit::swap {

// What is left on the host to programs, for what they allocate while memory is swapped and after.
inline constexpr std::uint64_t kSparedOnHost = std::uint64_t{512} << 20;

struct HostRoom {
    std::uint64_t bytes;
    std::string by;  // the limit that leaves the least

    // For swapped data.
    std::uint64_t usable() const { return bytes - std::min(bytes, kSparedOnHost); }
    // Why so many bytes more are refused.
    Failure refusal(std::uint64_t needed) const;
};

// By the available memory of the machine and the limits of our control groups, less what they use:
// as src/vramkit/host has them, which tests compare. What cannot be read is no limit. `root` stands
// for /. Some files of /proc: 0.1 ms.
HostRoom host_room(const std::string& root = "");

}  // namespace vramkit::swap
