// How this program shares its card: from the environment, which `vramkit run` sets.
#pragma once

#include <cstdint>
#include <string>

namespace vramkit::share {

enum class Mode : std::uint8_t { swap, prefetch, paged };

struct Settings {
    Mode mode = Mode::swap;
    std::string socket;        // of the daemon; empty: none
    std::uint64_t memory = 0;  // bytes that the program may have on each card; 0: no limit
    std::uint32_t weight_milli = 1000;
    std::int32_t priority = 0;
    std::uint64_t host_limit = 0;  // bytes of host memory for what is swapped; 0: none
    std::uint32_t window = 64;     // launches between two looks at the work in flight
    std::uint32_t chaos = 0;       // swap everything out and in every so many launches; 0: never
    bool ipc = false;              // memory stays where other processes can open it

    // VRAMKIT_SHARE and the variables that begin with VRAMKIT_SHARE_. One that cannot be read is
    // logged and left at its default: the program must run.
    static Settings from_environment();
};

}  // namespace vramkit::share
