// Asks those who hold memory of the pool to give some back.
#include "pool/shortage.h"

#include <algorithm>
#include <utility>

namespace vramkit::pool {

thread_local const Shortage::Entry* Shortage::running_ = nullptr;

std::uint64_t Shortage::add(Callback callback) {
    const std::lock_guard guard(lock_);
    const auto entry = std::make_shared<Entry>();
    entry->number = next_++;
    entry->callback = std::move(callback);
    entries_.push_back(entry);
    return entry->number;
}

void Shortage::remove(std::uint64_t number) {
    std::unique_lock guard(lock_);
    const auto found =
        std::ranges::find(entries_, number, [](const auto& each) { return each->number; });
    if (found == entries_.end()) return;
    const std::shared_ptr<Entry> entry = *found;
    entries_.erase(found);
    entry->removed = true;
    if (running_ == entry.get()) return;
    ended_.wait(guard, [&] { return entry->calls == 0; });
}

std::uint64_t Shortage::ask(std::uint64_t bytes) {
    if (running_ != nullptr) return 0;
    std::unique_lock guard(lock_);
    const auto entries = entries_;
    std::uint64_t freed = 0;
    for (const auto& entry : entries) {
        if (freed >= bytes) break;
        if (entry->removed) continue;
        ++entry->calls;
        guard.unlock();
        running_ = entry.get();
        freed += entry->callback(bytes - freed);
        running_ = nullptr;
        guard.lock();
        if (--entry->calls == 0) ended_.notify_all();
    }
    return freed;
}

}  // namespace vramkit::pool
