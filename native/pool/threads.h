// What a thread remembers of pools, what pools must know of threads that end, and of forks.
#pragma once

#include <cstdint>

#include "pool/types.h"

namespace vramkit::pool {

class Pool;

// Pools that live, by an id that is never used again.
std::uint64_t register_pool(Pool& pool);
void unregister_pool(std::uint64_t id);
// A stream is about to be destroyed: every pool of the driver that caches for it is told.
void tell_pools_of_closing_stream(const DriverTable& call, std::uint64_t stream);

// How often this process has been forked off another one.
int fork_count();

// The calling thread's cache of a pool and stream, or null. One comparison where the same one was
// asked for last.
Cache* find_cache(std::uint64_t pool, std::uint64_t stream_id);
Cache* find_cache_by_number(std::uint64_t pool, std::uint32_t stream);
void remember_cache(std::uint64_t pool, Cache* cache);

}  // namespace vramkit::pool
