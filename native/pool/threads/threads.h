// A thread's list of its caches, and their return to the pools when the thread ends.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pool/types.h"

namespace vramkit::pool {

class Pool;

// All caches of a thread, and small tables of recently used ones, indexed by stream id and stream
// number. Given back while the thread-local objects are destroyed; and once more at the very end of
// the thread, for objects that free blocks after that.
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
// A plain pointer, null before the thread's first cache: the hot path needs no initialization guard
// of a thread-local object.
extern constinit thread_local Local* here;

// The calling thread's cache of a pool and stream, or null. One comparison if the stream was used
// recently.
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
