// Checks options, and copies what a struct of the caller's size has room for.
#include "capi/options.h"

#include <cstring>
#include <string>

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
    options.enable_stats = config.enable_stats ? 1 : 0;
    return options;
}

bool refuse(const char* name, std::uint64_t value, const char* allowed) {
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
    if (options.cache_bytes >= kMost) {
        return refuse("cache_bytes", options.cache_bytes, "below 2^63");
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
    config.enable_stats = options.enable_stats != 0;
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
    all.total_allocated = now.total_allocated;
    all.total_freed = now.total_freed;
    all.allocation_count = now.allocation_count;
    all.free_count = now.free_count;
    all.cache_hits = now.cache_hits;
    all.cache_misses = now.cache_misses;
    all.global_hits = now.global_hits;
    all.fresh_hits = now.fresh_hits;
    all.device_growths = now.device_growths;
    all.current_usage = now.current_usage;
    all.peak_usage = now.peak_usage;
    all.reserved = now.reserved;
    all.peak_reserved = now.peak_reserved;
    all.cached = now.cached;
    all.waiting = now.waiting;
    all.chunks = now.chunks;
    all.marks = now.marks;
    std::memcpy(stats, &all, stats->size);
    return VRAMKIT_OK;
}

}  // namespace vramkit::capi

extern "C" void vramkit_pool_options_init(vramkit_pool_options* options) {
    if (options != nullptr) *options = vramkit::capi::defaults();
}
