// Settings and statistics of a pool.
#pragma once

#include <cstdint>

#include "pool/failure.h"
#include "pool/size_classes.h"

namespace vramkit::pool {

enum class Large : std::uint8_t {
    pool,    // blocks above 1 MiB are pooled like all others
    direct,  // they come from cuMemAlloc and go back by cuMemFree, as seed 002 has it
};

struct Config {
    std::uint64_t alignment = kUnit;               // power of two up to 64 KiB
    std::uint64_t thread_cache_max_blocks = 64;    // of each class in one cache
    std::uint64_t global_cache_max_blocks = 1024;  // of each class on one shelf
    std::uint64_t batch_alloc_count = 16;          // blocks made or moved at once
    double defrag_threshold = 0.3;                 // of the mapped bytes
    std::uint64_t defrag_interval_ms = 5000;
    bool enable_stats = true;
    bool enable_defrag = true;
    std::uint64_t cache_bytes = std::uint64_t{32} << 20;          // in one cache
    std::uint64_t thread_cache_bytes = std::uint64_t{256} << 20;  // in all caches of a thread
    std::uint64_t limit = 0;          // bytes taken from the driver; 0: none
    std::uint64_t decay_ms = 10'000;  // idle memory goes back after; 0: never
    Classes classes = Classes::fine;
    Large large = Large::pool;
    bool background = true;  // a thread of the pool does what step() does
    bool nvtx = false;       // tell tools which blocks are in use (nvtx.h); needs a limit
};

// False and the reason where a setting is out of its range, or could have no effect: one that is
// not the default, beside another that leaves it nothing to do.
bool is_valid(const Config& config, Failure& why);

struct Stats {
#define VRAMKIT_STAT(type, name) type name = 0;
#include "pool/stats.def"
#undef VRAMKIT_STAT
};

}  // namespace vramkit::pool
