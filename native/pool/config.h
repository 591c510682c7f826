// Settings and statistics of a pool.
#pragma once

#include <cstdint>

#include "base/failure.h"
#include "pool/blocks/size_classes.h"

namespace vramkit::pool {

enum class Large : std::uint8_t {
    pool,    // blocks above 1 MiB are pooled like all others
    direct,  // they come from cuMemAlloc and are freed by cuMemFree, which waits for the card
};

inline constexpr std::uint64_t kMost = (std::uint64_t{1} << 63) - 1;
inline constexpr std::uint64_t kMostMilliseconds = std::uint64_t{1} << 40;

struct Config {
#define VRAMKIT_NUMBER(name, value, least, most, allowed) std::uint64_t name = value;
#define VRAMKIT_PART(name, value) double name = value;
#define VRAMKIT_CHOICE(name, Type, value) Type name = Type::value;
#define VRAMKIT_FLAG(name, value) bool name = value;
#include "pool/settings.def"
#undef VRAMKIT_NUMBER
#undef VRAMKIT_PART
#undef VRAMKIT_CHOICE
#undef VRAMKIT_FLAG
};

// False and the reason if a setting is out of range, or has no effect: it differs from its default,
// but another setting switches off what it controls.
bool is_valid(const Config& config, Failure& why);

struct Stats {
#define VRAMKIT_STAT(type, name) type name = 0;
#include "pool/stats.def"
#undef VRAMKIT_STAT
};

}  // namespace vramkit::pool
