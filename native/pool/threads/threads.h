// What a thread remembers of pools, and what pools must know of threads that end.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pool/types.h"

namespace vramkit::pool {

class Pool;

// What a thread keeps: all its caches, and those used lately by where their keys point. Given back
// while the thread's objects are destroyed; and once more at its very end, for those of them that
// free blocks after that.
struct Local {
    static constexpr std::size_t kLately = 16;
    struct Entry {
        std::uint64_t pool = 0;
        ThreadCache* cache = nullptr;
    };

    std::vector<Entry> entries;
    std::array<Entry, kLately> by_stream;
    std::array<Entry, kLately> by_number;

    template <class Matches>
    ThreadCache* find(Entry& lately, std::uint64_t pool, Matches matches) {
        if (lately.pool == pool && matches(*lately.cache)) [[likely]]
            return lately.cache;
        for (const Entry& entry : entries) {
            if (entry.pool == pool && matches(*entry.cache)) {
                lately = entry;
                return entry.cache;
            }
        }
        return nullptr;
    }
    void forget_lately() {
        by_stream.fill({});
        by_number.fill({});
    }
};
// One word, null before the thread's first cache: the hot path passes no guard of an object.
extern constinit thread_local Local* here;

// The calling thread's cache of a pool and stream, or null. One comparison where the stream is
// among those used lately.
inline ThreadCache* find_cache(std::uint64_t pool, const StreamRef& stream) {
    if (here == nullptr) return nullptr;
    return here->find(here->by_stream[stream.id % Local::kLately], pool,
                      [&](const ThreadCache& cache) { return cache.stream.is(stream); });
}
inline ThreadCache* find_cache_by_number(std::uint64_t pool, std::uint32_t number) {
    if (here == nullptr) return nullptr;
    return here->find(here->by_number[number % Local::kLately], pool,
                      [&](const ThreadCache& cache) { return cache.number == number; });
}
void remember_cache(std::uint64_t pool, ThreadCache* cache);
std::vector<ThreadCache*> caches_of_this_thread(std::uint64_t pool);
// The calling thread forgets caches of pools that are gone. Takes the registry's lock.
void forget_gone_pools();
// The calling thread forgets its caches of a pool whose streams have ended, and returns them.
std::vector<ThreadCache*> forget_ended_caches(std::uint64_t pool);

}  // namespace vramkit::pool
