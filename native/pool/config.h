// Settings and statistics of a pool.
#pragma once

#include <cstdint>

#include "pool/size_classes.h"

namespace vramkit::pool {

enum class Large : std::uint8_t {
    pool,    // blocks above 1 MiB are pooled like all others
    direct,  // they come from cuMemAlloc and go back by cuMemFree, as seed 002 has it
};

struct Config {
    std::uint64_t alignment = kUnit;                             // power of two up to 64 KiB
    std::uint64_t thread_cache_max_blocks = 64;                  // of each class in one cache
    std::uint64_t global_cache_max_blocks = 1024;                // of each class on one shelf
    std::uint64_t batch_alloc_count = 16;                        // blocks made or moved at once
    double defrag_threshold = 0.3;                               // of the mapped bytes
    std::uint64_t defrag_interval_ms = 5000;
    bool enable_stats = true;
    bool enable_defrag = true;
    std::uint64_t cache_bytes = std::uint64_t{32} << 20;         // in one cache
    std::uint64_t thread_cache_bytes = std::uint64_t{256} << 20;  // in all caches of a thread
    std::uint64_t limit = 0;       // bytes taken from the driver; 0: none
    std::uint64_t decay_ms = 10'000;  // idle memory goes back after; 0: never
    Classes classes = Classes::fine;
    Large large = Large::pool;
    bool background = true;  // a thread of the pool does what step() does
};

struct Stats {
    // The counters since the last reset.
    std::uint64_t total_allocated = 0;
    std::uint64_t total_freed = 0;
    std::uint64_t allocation_count = 0;
    std::uint64_t free_count = 0;
    std::uint64_t cache_hits = 0;  // served by the thread's own cache
    std::uint64_t cache_misses = 0;
    std::uint64_t shelf_hits = 0;    // of the misses: by what threads of the stream had shared
    std::uint64_t idle_hits = 0;     // ... by mapped memory that was nobody's
    std::uint64_t other_hits = 0;    // ... by blocks of other streams whose work was done
    std::uint64_t wait_hits = 0;     // ... by such blocks after a wait on the GPU
    std::uint64_t remap_hits = 0;    // ... by idle memory put together anew
    std::uint64_t growth_hits = 0;   // ... by new memory
    std::uint64_t direct_hits = 0;   // ... by the driver itself (large = direct)
    std::uint64_t device_growths = 0;  // times that memory was taken from the driver
    std::uint64_t marks = 0;           // events recorded
    std::uint64_t returned = 0;        // bytes given back to the driver
    std::uint64_t moved = 0;           // bytes mapped at a second place to join them
    // The state now.
    std::uint64_t current_usage = 0;  // bytes asked for and not freed
    std::uint64_t peak_usage = 0;     // within 64 KiB a thread and stream
    std::uint64_t reserved = 0;       // bytes taken from the driver
    std::uint64_t peak_reserved = 0;
    std::uint64_t cached = 0;   // bytes in caches of threads
    std::uint64_t waiting = 0;  // bytes on shelves
    std::uint64_t idle = 0;     // bytes mapped that are nobody's
    std::uint64_t fragmentation_bytes = 0;
    double fragmentation_rate = 0;
    std::uint64_t segments = 0;
    std::uint64_t slabs = 0;
    std::uint64_t large_blocks = 0;  // that exist: in use, cached or shelved
    std::uint64_t captures = 0;      // arenas of graphs that live
};

}  // namespace vramkit::pool
