// Settings and statistics of a pool.
#pragma once

#include <cstdint>

#include "pool/size_classes.h"

namespace vramkit::pool {

struct Config {
    std::uint64_t thread_cache_max_blocks = 64;           // of each class in one cache
    std::uint64_t global_cache_max_blocks = 1024;         // of each class at the global level
    std::uint64_t batch_alloc_count = 16;                 // blocks made or moved at once
    std::uint64_t cache_bytes = std::uint64_t{32} << 20;  // in one cache
    std::uint64_t limit = 0;                              // bytes taken from the driver; 0: none
    bool enable_stats = true;
    Classes classes = Classes::fine;
};

struct Stats {
    // The counters since the last reset.
    std::uint64_t total_allocated = 0;
    std::uint64_t total_freed = 0;
    std::uint64_t allocation_count = 0;
    std::uint64_t free_count = 0;
    std::uint64_t cache_hits = 0;  // served by the thread's own cache
    std::uint64_t cache_misses = 0;
    std::uint64_t global_hits = 0;     // of the misses: by the global level
    std::uint64_t fresh_hits = 0;      // ... by blocks mapped ahead
    std::uint64_t device_growths = 0;  // ... by new memory
    // The state now.
    std::uint64_t current_usage = 0;  // bytes asked for and not freed
    std::uint64_t peak_usage = 0;     // within 64 KiB a thread
    std::uint64_t reserved = 0;       // bytes taken from the driver
    std::uint64_t peak_reserved = 0;
    std::uint64_t cached = 0;   // bytes in caches of threads
    std::uint64_t waiting = 0;  // bytes at the global level
    std::uint64_t chunks = 0;
    std::uint64_t marks = 0;  // events recorded
};

}  // namespace vramkit::pool
