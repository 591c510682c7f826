// How the simulated GPU is set up: the text of VRAMKIT_SIM, read and checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "sim/checker/call_sites.h"
#include "sim/profile/profile.h"

namespace vramkit::sim {

struct Settings {
    std::string profile_name = "h200";
    Profile profile;
    bool wall_clock = false;
    double scale = 1;  // simulated seconds a real second, with the wall clock
    bool checker = true;
    bool data = true;
    std::uint64_t capacity = 0;  // bytes of each device
    int devices = 1;
    std::string card;     // name of the card that processes share; empty: this process has its own
    double patience = 5;  // real seconds before a wait that nothing can end is a deadlock
    Stacks stacks = Stacks::off;
    std::string reports;  // where to write reports at exit; empty: nowhere
};

// With bytes behind it a simulated card takes real memory: no more than this.
inline constexpr std::uint64_t kMostCapacityWithData = std::uint64_t{4} << 30;
inline constexpr int kMostDevices = 16;

// The settings, or what is wrong with the text and what is allowed.
std::variant<Settings, std::string> parse_settings(std::string_view text);

}  // namespace vramkit::sim
