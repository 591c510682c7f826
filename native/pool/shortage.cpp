// Asks those who hold memory of the pool to give some back.
#include "pool/shortage.h"

#include <algorithm>
#include <utility>

#include "base/host_memory.h"

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

// One call, between a begin and an end that are made whatever the callback does.
class Shortage::Running {
  public:
    // None where the callback was removed.
    Running(Shortage& shortage, Entry& entry) : shortage_(shortage), entry_(entry) {
        const std::lock_guard guard(shortage_.lock_);
        if (entry_.removed) return;
        ++entry_.calls;
        running_ = &entry_;
    }
    ~Running() {
        if (!*this) return;
        running_ = nullptr;
        const std::lock_guard guard(shortage_.lock_);
        if (--entry_.calls == 0) shortage_.ended_.notify_all();
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

    explicit operator bool() const { return running_ == &entry_; }

  private:
    Shortage& shortage_;
    Entry& entry_;
};

std::uint64_t Shortage::ask(std::uint64_t bytes) {
    if (running_ != nullptr) return 0;
    std::vector<std::shared_ptr<Entry>> entries;
    const bool listed = if_host_memory_allows([&] {
        const std::lock_guard guard(lock_);
        entries = entries_;
    });
    if (!listed) return 0;
    std::uint64_t freed = 0;
    for (const auto& entry : entries) {
        if (freed >= bytes) break;
        const Running call(*this, *entry);
        if (!call) continue;
        if_host_memory_allows([&] { freed += entry->callback(bytes - freed); });
    }
    return freed;
}

}  // namespace vramkit::pool
