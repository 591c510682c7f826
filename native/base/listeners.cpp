// The one registry of listeners in a process.
#include "base/listeners.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/fork.h"

namespace vramkit {
namespace {

struct Registry {
    struct Known {
        Listener* listener;
        int users = 0;
        bool going = false;
    };

    std::mutex lock;
    std::condition_variable left;  // a listener has no users left
    std::unordered_map<std::uint64_t, Known> listeners;
};

// Never destroyed: threads may end, and streams close, while the process exits.
Registry& registry() {
    static Registry& made = *std::make_unique<Registry>().release();
    return made;
}

template <class Tell>
void announce(const DriverTable& call, Tell tell) {
    if (fork_count() > 0) return;
    std::vector<std::uint64_t> ids;
    {
        Registry& all = registry();
        const std::lock_guard guard(all.lock);
        for (const auto& [id, known] : all.listeners) ids.push_back(id);
    }
    for (const std::uint64_t id : ids) {
        const PinnedListener pinned(id);
        if (pinned.get() != nullptr && pinned.get()->uses(call)) tell(*pinned.get());
    }
}

}  // namespace

std::uint64_t next_listener_id() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
}

void add_listener(std::uint64_t id, Listener& listener) {
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    all.listeners.emplace(id, Registry::Known{&listener});
}

void remove_listener(std::uint64_t id) {
    Registry& all = registry();
    std::unique_lock guard(all.lock);
    const auto found = all.listeners.find(id);
    if (found == all.listeners.end()) return;
    found->second.going = true;
    all.left.wait(guard, [&] { return all.listeners.at(id).users == 0; });
    all.listeners.erase(id);
}

bool is_listening(std::uint64_t id) {
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    return all.listeners.contains(id);
}

void announce_stream_closing(const DriverTable& call, std::uint64_t id, CUstream handle) {
    announce(call, [&](Listener& each) { each.stream_closing(id, handle); });
}

void announce_reset(const DriverTable& call) {
    announce(call, [](Listener& each) { each.driver_reset(); });
}

PinnedListener::PinnedListener(std::uint64_t id) : id_(id) {
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    const auto found = all.listeners.find(id);
    if (found == all.listeners.end() || found->second.going) return;
    listener_ = found->second.listener;
    ++found->second.users;
}

PinnedListener::~PinnedListener() {
    if (listener_ == nullptr) return;
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    if (--all.listeners.at(id_).users == 0) all.left.notify_all();
}

}  // namespace vramkit
