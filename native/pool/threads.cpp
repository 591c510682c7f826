// Thread-local lists of caches, given back when the thread ends.
#include "pool/threads.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "pool/pool.h"

namespace vramkit::pool {
namespace {

struct Registry {
    struct Known {
        Pool* pool;
        int users = 0;
        bool going = false;
    };

    std::mutex lock;
    std::condition_variable left;  // a pool has no users any more
    std::unordered_map<std::uint64_t, Known> pools;
};

// Never destroyed: threads may end while the process exits.
Registry& registry() {
    static Registry& made = *std::make_unique<Registry>().release();
    return made;
}

// A pool that does not go while this lives; null where it has gone. Pools are called without the
// registry's lock: one that waits for the GPU holds up nobody who has to do with another.
class Pin {
  public:
    explicit Pin(std::uint64_t id) : id_(id) {
        Registry& all = registry();
        const std::lock_guard guard(all.lock);
        const auto found = all.pools.find(id);
        if (found == all.pools.end() || found->second.going) return;
        pool_ = found->second.pool;
        ++found->second.users;
    }
    ~Pin() {
        if (pool_ == nullptr) return;
        Registry& all = registry();
        const std::lock_guard guard(all.lock);
        if (--all.pools.at(id_).users == 0) all.left.notify_all();
    }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

    explicit operator bool() const { return pool_ != nullptr; }
    Pool* operator->() const { return pool_; }

  private:
    const std::uint64_t id_;
    Pool* pool_ = nullptr;
};

template <class Tell>
void tell_pools(const DriverTable& call, Tell tell) {
    if (fork_count() > 0) return;
    std::vector<std::uint64_t> ids;
    {
        Registry& all = registry();
        const std::lock_guard guard(all.lock);
        for (const auto& [id, known] : all.pools) ids.push_back(id);
    }
    for (const std::uint64_t id : ids) {
        if (const Pin pool(id); pool && pool->uses(call)) tell(*pool.operator->());
    }
}

using detail::forks;
using Entry = Local::Entry;

void give_back(Local& local) {
    const std::vector<Entry> entries = std::exchange(local.entries, {});
    local.forget_lately();
    // In a fork the locks may be held by threads that are not there.
    if (fork_count() > 0) return;
    for (const Entry& entry : entries) {
        try {
            if (const Pin pool(entry.pool); pool) pool->cache_ending(entry.cache);
        } catch (const std::bad_alloc&) {
            // The cache stays with its pool, which empties it when memory is short.
        }
    }
}

constinit thread_local bool objects_are_gone = false;

// Ends among the objects of the thread.
struct Owner {
    ~Owner() {
        objects_are_gone = true;
        give_back(*here);
    }
};

// The thread's very end comes after its objects'. The main thread's never does.
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
    all.pools.emplace(id, Registry::Known{&pool});
}

void unregister_pool(std::uint64_t id) {
    Registry& all = registry();
    std::unique_lock guard(all.lock);
    const auto found = all.pools.find(id);
    if (found == all.pools.end()) return;
    Registry::Known& known = found->second;
    known.going = true;
    all.left.wait(guard, [&] { return known.users == 0; });
    all.pools.erase(id);
}

void tell_pools_of_closing_stream(const DriverTable& call, std::uint64_t stream, CUstream handle) {
    tell_pools(call, [&](Pool& pool) { pool.stream_closing(stream, handle); });
}

void tell_pools_of_reset(const DriverTable& call) {
    tell_pools(call, [](Pool& pool) { pool.abandon(); });
}

void remember_cache(std::uint64_t pool, Cache* cache) {
    if (here == nullptr) here = &make_local();
    if (!objects_are_gone) {
        // Made by the first cache of a thread, after it has called the driver: what the driver
        // keeps for the thread is then still there when the caches are given back.
        [[maybe_unused]] thread_local Owner owner;
    }
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
