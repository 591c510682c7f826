// What the program has on one card: its memory, and the credits for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/checker.h"
#include "base/device_sync.h"
#include "share/credits.h"
#include "share/memory.h"
#include "share/settings.h"

namespace vramkit::share {

class Card {
  public:
    // Retains the primary context, in which memory moves whatever contexts the program has.
    static std::unique_ptr<Card> open(std::shared_ptr<Driver> driver, CUdevice device,
                                      const Settings& settings, Failure& why);
    ~Card();
    Card(const Card&) = delete;
    Card& operator=(const Card&) = delete;

    CUdevice device() const { return device_; }
    CUcontext context() const { return context_; }
    Memory& memory() { return *memory_; }
    // Whether handles of the program (cuMemCreate) are kept and moved too. Then by the engine.
    bool keeps_handles() const { return memory_->engine() != nullptr; }
    swap::Engine& engine() { return *memory_->engine(); }
    bool owns_mapping(std::uint64_t address, std::uint64_t bytes) {
        return keeps_handles() && engine().owns_mapping(address, bytes);
    }
    SpareCredits& credits() { return credits_; }
    // Bytes that the program may have; what it sees as the size of the card.
    std::uint64_t limit() const;
    // By the daemon; 0: none yet.
    void set_limit(std::uint64_t bytes) { told_limit_.store(bytes, std::memory_order_relaxed); }
    std::uint64_t card_bytes() const { return card_bytes_; }
    // Bytes that it has, wherever they are, unswappable ones included.
    std::uint64_t in_use() const;
    // Bytes that it can still have.
    std::uint64_t left() const { return limit() - std::min(limit(), in_use()); }

    // An allocation of the program in this context, by cuMemAlloc and its like. 0 on failure.
    std::uint64_t allocate(std::uint64_t bytes, CUcontext context, Failure& why);
    // No work of the program may be using it.
    bool free(std::uint64_t address, Failure& why);
    struct Owned {
        std::uint64_t begin, bytes;
        CUcontext context;
    };
    std::optional<Owned> find(std::uint64_t address) const;
    // A handle of the program, for its virtual memory calls. 0 on failure.
    std::uint64_t create_handle(std::uint64_t bytes, const CUmemAllocationProp& properties,
                                Failure& why);
    // Of a handle that create_handle() gave at any time; none: not ours.
    std::optional<CUmemAllocationProp> properties_of(std::uint64_t handle) const;
    // All that was allocated in a context goes with it.
    void free_all_of(CUcontext context);
    // free() of a handle or a mapping: `take` frees and says how many bytes the card has got back.
    // They are spare credits in one step for whoever counts what is held.
    template <class Take>
    void give_back(Take take) {
        const std::lock_guard guard(giving_);
        if (const std::uint64_t freed = take(); freed > 0) credits_.give(freed);
    }
    // From now on memory is taken by credits alone; returns the bytes that it has.
    std::uint64_t limit_credits() {
        const std::lock_guard guard(giving_);
        credits_.set_unlimited(false);
        return memory_->card_bytes();
    }
    // Memory that the driver gave out itself and that stays on the card.
    void note_unswappable(std::int64_t bytes) { unswappable_.fetch_add(bytes); }
    std::uint64_t unswappable() const { return unswappable_.load(std::memory_order_relaxed); }
    // Graphs take memory for their own nodes when they run, which no call of the program tells:
    // asks the driver how much that is now. By the agent's thread.
    void look_at_graphs();

    // Waits for all work of the program in a context of this card.
    bool wait_for_work(CUcontext context);

  private:
    Card(std::shared_ptr<Driver> driver, CUdevice device, CUcontext context);
    // Before an allocation. False: there is no room for so many bytes anyway.
    bool limit_memory(std::uint64_t bytes);
    bool make(const Settings& settings, Failure& why);
    std::unique_ptr<Memory> open_memory(const Settings& settings, Failure& why);

    const std::shared_ptr<Driver> driver_;
    const DriverTable& call_;
    const CUdevice device_;
    const CUcontext context_;
    const Checker checker_;
    DeviceSync sync_;
    std::uint64_t card_bytes_ = 0;
    std::uint64_t own_limit_ = 0;  // of the settings; 0: none
    std::atomic<std::uint64_t> told_limit_{0};
    SpareCredits credits_;
    std::unique_ptr<Memory> memory_;
    std::atomic<std::uint64_t> unswappable_{0};
    std::uint64_t graph_bytes_ = 0;  // of it, as last seen
    std::mutex giving_;
    mutable std::mutex owners_lock_;
    std::unordered_map<std::uint64_t, CUcontext> owners_;  // by the begin of the allocation
    std::unordered_map<std::uint64_t, CUmemAllocationProp> handles_;
};

}  // namespace vramkit::share
