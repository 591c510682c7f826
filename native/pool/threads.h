// What a thread remembers of pools, what pools must know of threads that end, and of forks.
#pragma once

#include <cstdint>
#include <vector>

#include "pool/types.h"

namespace vramkit::pool {

class Pool;

// Ids are never used again, so that a thread's memory of a pool cannot mislead.
std::uint64_t next_pool_id();
void register_pool(std::uint64_t id, Pool& pool);
void unregister_pool(std::uint64_t id);
// A stream is about to be destroyed: every pool of the driver that caches for it is told.
void tell_pools_of_closing_stream(const DriverTable& call, std::uint64_t stream);
// The simulated GPU was reset: what its pools hold is gone.
void tell_pools_of_reset(const DriverTable& call);

// How often this process has been forked off another one.
int fork_count();

// The calling thread's cache of a pool and stream, or null. One comparison where the stream is
// among those used lately.
Cache* find_cache(std::uint64_t pool, const StreamRef& stream);
Cache* find_cache_by_number(std::uint64_t pool, std::uint32_t number);
void remember_cache(std::uint64_t pool, Cache* cache);
std::vector<Cache*> caches_of_this_thread(std::uint64_t pool);
// The calling thread forgets caches of pools that are gone. Takes the registry's lock.
void forget_gone_pools();
// The calling thread forgets its caches of a pool whose streams have ended, and returns them.
std::vector<Cache*> forget_ended_caches(std::uint64_t pool);

}  // namespace vramkit::pool
