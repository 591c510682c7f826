// Thread-local lists of caches, given back when the thread ends.
#include "pool/threads/threads.h"

#include <pthread.h>

#include <memory>
#include <new>
#include <utility>

#include "base/fork.h"
#include "base/listeners.h"
#include "pool/pool.h"

namespace vramkit::pool {
namespace {

using Entry = Local::Entry;

void give_back(Local& local) {
    const std::vector<Entry> entries = std::exchange(local.entries, {});
    local.forget_lately();
    // In a forked child the locks may be held by threads that do not exist.
    if (fork_count() > 0) return;
    for (const Entry& entry : entries) {
        try {
            // The ids that a thread remembers are those of pools.
            const PinnedListener pinned(entry.pool);
            if (auto* const pool = static_cast<Pool*>(pinned.get())) {
                pool->cache_ending(entry.cache);
            }
        } catch (const std::bad_alloc&) {
            // The cache stays with its pool, which drains it when memory is short.
        }
    }
}

constinit thread_local bool objects_are_gone = false;

// Destroyed with the other thread-local objects of the thread.
struct Owner {
    ~Owner() {
        objects_are_gone = true;
        give_back(*here);
    }
};

// Runs after all thread-local objects are destroyed; never on the main thread.
void end_of_thread(void* local) {
    const std::unique_ptr<Local> ending(static_cast<Local*>(local));
    give_back(*ending);
    here = nullptr;
}

Local& make_local() {
    static const pthread_key_t key = [] {
        pthread_key_t made{};
        if (pthread_key_create(&made, &end_of_thread) != 0) throw std::bad_alloc();
        return made;
    }();
    auto made = std::make_unique<Local>();
    if (pthread_setspecific(key, made.get()) != 0) throw std::bad_alloc();
    return *made.release();
}

}  // namespace

constinit thread_local Local* here = nullptr;

void remember_cache(std::uint64_t pool, ThreadCache* cache) {
    if (here == nullptr) here = &make_local();
    if (!objects_are_gone) {
        // Made with the first cache of a thread, after its first driver call: it is destroyed
        // before the driver's own thread-local state, which the give-back needs.
        [[maybe_unused]] thread_local Owner owner;
    }
    here->entries.push_back({pool, cache});
}

std::vector<ThreadCache*> caches_of_this_thread(std::uint64_t pool) {
    std::vector<ThreadCache*> found;
    for (const Entry& entry : here->entries) {
        if (entry.pool == pool) found.push_back(entry.cache);
    }
    return found;
}

void forget_gone_pools() {
    if (here == nullptr) return;
    std::erase_if(here->entries, [](const Entry& entry) { return !is_listening(entry.pool); });
    here->forget_lately();
}

std::vector<ThreadCache*> forget_ended_caches(std::uint64_t pool) {
    std::vector<ThreadCache*> ended;
    if (here == nullptr) return ended;
    ended.reserve(here->entries.size());  // nothing may fail in the middle of the list
    std::erase_if(here->entries, [&](const Entry& entry) {
        if (entry.pool != pool || !entry.cache->has_ended()) return false;
        ended.push_back(entry.cache);
        return true;
    });
    if (!ended.empty()) here->forget_lately();
    return ended;
}

}  // namespace vramkit::pool
