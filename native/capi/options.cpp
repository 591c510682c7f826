// Checks options, and copies what a struct of the caller's size has room for.
#include "capi/options.h"

#include <cstring>
#include <string>
#include <utility>

#include "capi/errors.h"
#include "pool/size_classes.h"

namespace vramkit::capi {
namespace {

vramkit_pool_options defaults() {
    const pool::Config config;
    vramkit_pool_options options{};
    options.size = sizeof options;
    options.classes =
        config.classes == pool::Classes::fine ? VRAMKIT_CLASSES_FINE : VRAMKIT_CLASSES_SEED;
    options.limit = config.limit;
    options.thread_cache_max_blocks = config.thread_cache_max_blocks;
    options.global_cache_max_blocks = config.global_cache_max_blocks;
    options.batch_alloc_count = config.batch_alloc_count;
    options.cache_bytes = config.cache_bytes;
    options.thread_cache_bytes = config.thread_cache_bytes;
    options.alignment = config.alignment;
    options.decay_ms = config.decay_ms;
    options.defrag_interval_ms = config.defrag_interval_ms;
    options.defrag_threshold = config.defrag_threshold;
    options.large = config.large == pool::Large::direct ? VRAMKIT_LARGE_DIRECT : VRAMKIT_LARGE_POOL;
    options.enable_stats = config.enable_stats ? 1 : 0;
    options.enable_defrag = config.enable_defrag ? 1 : 0;
    options.background = config.background ? 1 : 0;
    options.nvtx = config.nvtx ? 1 : 0;
    return options;
}

template <class Number>
bool refuse(const char* name, Number value, const char* allowed) {
    fail(VRAMKIT_BAD_VALUE,
         std::string(name) + " is " + std::to_string(value) + "; it may be " + allowed);
    return false;
}

bool makes_sense(const vramkit_pool_options& options) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
    if (options.classes != VRAMKIT_CLASSES_FINE && options.classes != VRAMKIT_CLASSES_SEED) {
        return refuse("classes", static_cast<std::uint64_t>(options.classes),
                      "VRAMKIT_CLASSES_FINE or VRAMKIT_CLASSES_SEED");
    }
    if (options.limit != 0 && (options.limit < pool::kPage || options.limit >= kMost)) {
        return refuse("limit", options.limit, "0 for none, or 2 MiB (one page) or more");
    }
    if (options.thread_cache_max_blocks >= kMost) {
        return refuse("thread_cache_max_blocks", options.thread_cache_max_blocks, "below 2^63");
    }
    if (options.global_cache_max_blocks >= kMost) {
        return refuse("global_cache_max_blocks", options.global_cache_max_blocks, "below 2^63");
    }
    if (options.batch_alloc_count == 0 || options.batch_alloc_count >= kMost) {
        return refuse("batch_alloc_count", options.batch_alloc_count, "1 or more, below 2^63");
    }
    if (options.large != VRAMKIT_LARGE_POOL && options.large != VRAMKIT_LARGE_DIRECT) {
        return refuse("large", static_cast<std::uint64_t>(options.large),
                      "VRAMKIT_LARGE_POOL or VRAMKIT_LARGE_DIRECT");
    }
    if (options.cache_bytes >= kMost) {
        return refuse("cache_bytes", options.cache_bytes, "below 2^63");
    }
    if (options.thread_cache_bytes >= kMost) {
        return refuse("thread_cache_bytes", options.thread_cache_bytes, "below 2^63");
    }
    constexpr std::uint64_t kMostMilliseconds = std::uint64_t{1} << 40;
    if (options.decay_ms > kMostMilliseconds) {
        return refuse("decay_ms", options.decay_ms, "0 for never, or up to 2^40");
    }
    if (options.defrag_interval_ms > kMostMilliseconds) {
        return refuse("defrag_interval_ms", options.defrag_interval_ms, "1 to 2^40");
    }
    const std::pair<const char*, int> flags[] = {{"enable_stats", options.enable_stats},
                                                 {"enable_defrag", options.enable_defrag},
                                                 {"background", options.background},
                                                 {"nvtx", options.nvtx}};
    for (const auto& [name, value] : flags) {
        if (value != 0 && value != 1) return refuse(name, value, "0 or 1");
    }
    pool::Failure why;
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
    config.classes =
        options.classes == VRAMKIT_CLASSES_SEED ? pool::Classes::seed : pool::Classes::fine;
    config.limit = options.limit;
    config.thread_cache_max_blocks = options.thread_cache_max_blocks;
    config.global_cache_max_blocks = options.global_cache_max_blocks;
    config.batch_alloc_count = options.batch_alloc_count;
    config.cache_bytes = options.cache_bytes;
    config.thread_cache_bytes = options.thread_cache_bytes;
    config.alignment = options.alignment;
    config.decay_ms = options.decay_ms;
    config.defrag_interval_ms = options.defrag_interval_ms;
    config.defrag_threshold = options.defrag_threshold;
    config.large = options.large == VRAMKIT_LARGE_DIRECT ? pool::Large::direct : pool::Large::pool;
    config.enable_stats = options.enable_stats != 0;
    config.enable_defrag = options.enable_defrag != 0;
    config.background = options.background != 0;
    config.nvtx = options.nvtx != 0;
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
