// Checks options, and copies as much as fits the caller's struct.
#include "capi/options.h"

#include <cstring>
#include <string>
#include <utility>

#include "capi/errors.h"
#include "pool/blocks/size_classes.h"

namespace vramkit::capi {
namespace {

// The C enumerators have the same values as the engine's.
static_assert(VRAMKIT_CLASSES_POWER_OF_TWO == static_cast<int>(pool::SizeClasses::power_of_two));
static_assert(VRAMKIT_LARGE_DIRECT == static_cast<int>(pool::Large::direct));

vramkit_pool_options defaults() {
    const pool::Config config;
    vramkit_pool_options options{};
    options.size = sizeof options;
#define VRAMKIT_NUMBER(name, value, least, most, allowed) options.name = config.name;
#define VRAMKIT_PART(name, value) options.name = config.name;
#define VRAMKIT_CHOICE(name, Type, value) \
    options.name = static_cast<decltype(options.name)>(config.name);
#define VRAMKIT_FLAG(name, value) options.name = config.name ? 1 : 0;
#include "pool/settings.def"
#undef VRAMKIT_NUMBER
#undef VRAMKIT_PART
#undef VRAMKIT_CHOICE
#undef VRAMKIT_FLAG
    return options;
}

template <class Number>
bool refuse(const char* name, Number value, const char* allowed) {
    fail(VRAMKIT_BAD_VALUE,
         std::string(name) + " is " + std::to_string(value) + "; it may be " + allowed);
    return false;
}

// Checks beyond the engine's own: in C, enumerators and flags can have any int value.
bool makes_sense(const vramkit_pool_options& options) {
    const auto one_of_two = [](auto value) { return value == 0 || value == 1; };
    if (!one_of_two(static_cast<int>(options.size_classes))) {
        return refuse("size_classes", static_cast<int>(options.size_classes),
                      "VRAMKIT_CLASSES_FINE or VRAMKIT_CLASSES_POWER_OF_TWO");
    }
    if (!one_of_two(static_cast<int>(options.large))) {
        return refuse("large", static_cast<int>(options.large),
                      "VRAMKIT_LARGE_POOL or VRAMKIT_LARGE_DIRECT");
    }
#define VRAMKIT_NUMBER(name, value, least, most, allowed)
#define VRAMKIT_PART(name, value)
#define VRAMKIT_CHOICE(name, Type, value)
#define VRAMKIT_FLAG(name, value) \
    if (!one_of_two(options.name)) return refuse(#name, options.name, "0 or 1");
#include "pool/settings.def"
#undef VRAMKIT_NUMBER
#undef VRAMKIT_PART
#undef VRAMKIT_CHOICE
#undef VRAMKIT_FLAG
    Failure why;
    if (!pool::is_valid(config_of(options), why)) {
        fail(why);
        return false;
    }
    return true;
}

}  // namespace

std::optional<vramkit_pool_options> checked(const vramkit_pool_options* given) {
    vramkit_pool_options options = defaults();
    if (given == nullptr) return options;
    if (given->size < sizeof given->size || given->size > sizeof options) {
        fail(VRAMKIT_BAD_VALUE,
             "the options have a size of " + std::to_string(given->size) + "; this library knows " +
                 std::to_string(sizeof options) +
                 " bytes of them: call vramkit_pool_options_init, and use the header of the "
                 "installed version");
        return std::nullopt;
    }
    std::memcpy(&options, given, given->size);
    if (!makes_sense(options)) return std::nullopt;
    return options;
}

pool::Config config_of(const vramkit_pool_options& options) {
    pool::Config config;
#define VRAMKIT_NUMBER(name, value, least, most, allowed) config.name = options.name;
#define VRAMKIT_PART(name, value) config.name = options.name;
#define VRAMKIT_CHOICE(name, Type, value) config.name = static_cast<pool::Type>(options.name);
#define VRAMKIT_FLAG(name, value) config.name = options.name != 0;
#include "pool/settings.def"
#undef VRAMKIT_NUMBER
#undef VRAMKIT_PART
#undef VRAMKIT_CHOICE
#undef VRAMKIT_FLAG
    return config;
}

vramkit_status report(const pool::Stats& now, vramkit_stats* stats) {
    if (stats == nullptr || stats->size < sizeof stats->size || stats->size > sizeof *stats) {
        return fail(VRAMKIT_BAD_VALUE,
                    "stats must point at a vramkit_stats whose size is set: stats.size = "
                    "sizeof(vramkit_stats); this library knows " +
                        std::to_string(sizeof(vramkit_stats)) + " bytes of it");
    }
    vramkit_stats all{};
    all.size = stats->size;
#define VRAMKIT_STAT(type, name) all.name = now.name;
#include "pool/stats.def"
#undef VRAMKIT_STAT
    std::memcpy(stats, &all, stats->size);
    return VRAMKIT_OK;
}

}  // namespace vramkit::capi

extern "C" void vramkit_pool_options_init(vramkit_pool_options* options) {
    if (options != nullptr) *options = vramkit::capi::defaults();
}
