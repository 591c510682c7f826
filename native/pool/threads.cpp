// Thread-local lists of caches, given back when the thread ends.
#include "pool/threads.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

struct Registry {
    std::mutex lock;
    std::unordered_map<std::uint64_t, Pool*> pools;
    std::uint64_t next = 1;
};

// Never destroyed: threads may end while the process exits.
Registry& registry() {
    static Registry& made = *std::make_unique<Registry>().release();
    return made;
}

std::atomic<int> forks{0};

struct Entry {
    std::uint64_t pool = 0;
    Cache* cache = nullptr;
};

struct Local {
    Entry last;
    std::vector<Entry> entries;

    ~Local() {
        const int forked = forks.load();
        Registry& all = registry();
        // In a fork the lock may be held by a thread that is not there.
        if (forked > 0) return;
        const std::lock_guard guard(all.lock);
        for (const Entry& entry : entries) {
            const auto found = all.pools.find(entry.pool);
            if (found != all.pools.end()) found->second->cache_ending(entry.cache);
        }
    }
};

Local& local() {
    thread_local Local here;
    return here;
}

template <class Matches>
Cache* search(std::uint64_t pool, Matches matches) {
    Local& here = local();
    if (here.last.pool == pool && matches(*here.last.cache)) return here.last.cache;
    for (const Entry& entry : here.entries) {
        if (entry.pool == pool && matches(*entry.cache)) {
            here.last = entry;
            return entry.cache;
        }
    }
    return nullptr;
}

}  // namespace

std::uint64_t register_pool(Pool& pool) {
    static const int once = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    static_cast<void>(once);
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    const std::uint64_t id = all.next++;
    all.pools.emplace(id, &pool);
    return id;
}

void unregister_pool(std::uint64_t id) {
    if (fork_count() > 0) return;
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    all.pools.erase(id);
}

void tell_pools_of_closing_stream(const DriverTable& call, std::uint64_t stream) {
    if (fork_count() > 0) return;
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    for (const auto& [id, pool] : all.pools) {
        if (pool->uses(call)) pool->stream_closing(stream);
    }
}

int fork_count() { return forks.load(std::memory_order_relaxed); }

Cache* find_cache(std::uint64_t pool, std::uint64_t stream_id) {
    return search(pool, [&](const Cache& cache) { return cache.stream.id == stream_id; });
}

Cache* find_cache_by_number(std::uint64_t pool, std::uint32_t number) {
    return search(pool, [&](const Cache& cache) { return cache.number == number; });
}

void remember_cache(std::uint64_t pool, Cache* cache) {
    Local& here = local();
    here.last = Entry{pool, cache};
    here.entries.push_back(here.last);
}

}  // namespace vramkit::pool
