// The exported names as numbers, and the slots that their trampolines jump through.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace vramkit::gate {

enum class Export : std::uint16_t {
#define VRAMKIT_EXPORT(name) name,
#include "gate/exports.def"
#undef VRAMKIT_EXPORT
    count,
};

inline constexpr std::size_t kExports = static_cast<std::size_t>(Export::count);

inline constexpr std::array<const char*, kExports> kExportNames = {{
#define VRAMKIT_EXPORT(name) #name,
#include "gate/exports.def"
#undef VRAMKIT_EXPORT
}};

inline constexpr std::size_t number(Export name) { return static_cast<std::size_t>(name); }

using Slot = std::atomic<void*>;
static_assert(sizeof(Slot) == 8, "trampolines.S has slots of 8 bytes");

}  // namespace vramkit::gate

// Of trampolines.S: one a name, in the order of exports.def.
extern "C" __attribute__((visibility("hidden"))) vramkit::gate::Slot vramkit_gate_slots[];
