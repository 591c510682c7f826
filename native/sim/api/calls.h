// The calls of the manifest as numbers, with what the simulator needs to know of each.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "driver/cuda_abi.h"

namespace vramkit::sim {

enum class CallId : std::uint16_t {
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) symbol,
#include "driver/manifest.def"
#undef VRAMKIT_CALL
    // The simulator's own controls that count as accesses.
    simHostAccess,
    simBlockAlloc,
    simBlockFree,
    simBlockHold,
    simBlockRegion,
    count,
};

inline constexpr std::size_t kCalls = static_cast<std::size_t>(CallId::count);

struct CallName {
    std::string_view base;
    std::string_view symbol;
};

inline constexpr std::array<CallName, kCalls> kCallNames = {{
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) {#base, #symbol},
#include "driver/manifest.def"
#undef VRAMKIT_CALL
    {"simHostAccess", "simHostAccess"},
    {"simBlockAlloc", "simBlockAlloc"},
    {"simBlockFree", "simBlockFree"},
    {"simBlockHold", "simBlockHold"},
    {"simBlockRegion", "simBlockRegion"},
}};

inline constexpr std::uint16_t number(CallId id) { return static_cast<std::uint16_t>(id); }

}  // namespace vramkit::sim
