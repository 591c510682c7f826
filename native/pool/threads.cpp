// Thread-local lists of caches, given back when the thread ends.
#include "pool/threads.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

struct Registry {
    std::mutex lock;
    std::unordered_map<std::uint64_t, Pool*> pools;
};

// Never destroyed: threads may end while the process exits.
Registry& registry() {
    static Registry& made = *std::make_unique<Registry>().release();
    return made;
}

using detail::forks;
using Entry = Local::Entry;

// Ends with the thread.
struct Owner {
    Local local;
    ~Owner() {
        here = nullptr;
        // In a fork the lock may be held by a thread that is not there.
        if (forks.load() > 0) return;
        Registry& all = registry();
        const std::lock_guard guard(all.lock);
        for (const Entry& entry : local.entries) {
            const auto found = all.pools.find(entry.pool);
            if (found != all.pools.end()) found->second->cache_ending(entry.cache);
        }
    }
};

}  // namespace

constinit thread_local Local* here = nullptr;
std::atomic<int> detail::forks{0};

std::uint64_t next_pool_id() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
}

void register_pool(std::uint64_t id, Pool& pool) {
    static const int once = pthread_atfork(nullptr, nullptr, [] { ++forks; });
    static_cast<void>(once);
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    all.pools.emplace(id, &pool);
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

void tell_pools_of_reset(const DriverTable& call) {
    if (fork_count() > 0) return;
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    for (const auto& [id, pool] : all.pools) {
        if (pool->uses(call)) pool->abandon();
    }
}

void remember_cache(std::uint64_t pool, Cache* cache) {
    // Made by the first cache of a thread, after it has called the driver: what the driver keeps
    // for the thread is then still there when the caches are given back.
    thread_local Owner owner;
    here = &owner.local;
    here->entries.push_back({pool, cache});
}

std::vector<Cache*> caches_of_this_thread(std::uint64_t pool) {
    std::vector<Cache*> found;
    for (const Entry& entry : here->entries) {
        if (entry.pool == pool) found.push_back(entry.cache);
    }
    return found;
}

void forget_gone_pools() {
    if (here == nullptr) return;
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    std::erase_if(here->entries,
                  [&](const Entry& entry) { return !all.pools.contains(entry.pool); });
    here->forget_lately();
}

std::vector<Cache*> forget_ended_caches(std::uint64_t pool) {
    std::vector<Cache*> ended;
    if (here == nullptr) return ended;
    std::erase_if(here->entries, [&](const Entry& entry) {
        if (entry.pool != pool || !entry.cache->has_ended()) return false;
        ended.push_back(entry.cache);
        return true;
    });
    if (!ended.empty()) here->forget_lately();
    return ended;
}

}  // namespace vramkit::pool
