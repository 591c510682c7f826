// Where the threads of a play wait for one another. On the virtual clock who waits takes over the
// time of whom it has waited for.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lab/clock.h"
#include "lab/program.h"

namespace vramkit::lab {

// Waits return false where the play was stopped. What does not wait costs an atomic or two; a wait
// looks a few hundred times, then sleeps.
class Meeting {
  public:
    Meeting(const Program& program, const Clock& clock)
        : clock_(clock),
          threads_(program.threads.size()),
          told_(program.slots() > 0 ? std::make_unique<Told[]>(program.slots()) : nullptr),
          // No thread begins before the one that starts them.
          latest_(clock.now()),
          walls_(program.sections) {}

    bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
    void stop() {
        stopped_ = true;
        const std::lock_guard guard(lock_);
        changed_.notify_all();
    }

    // All threads wait for the last one, which calls `then(moment)` while the others still wait.
    // What follows counts for the section.
    template <class Then>
    bool meet(std::size_t section, Then then) {
        const double now = clock_.now();
        std::unique_lock guard(lock_);
        latest_ = std::max(latest_, now);
        if (++arrived_ < threads_) {
            const std::uint64_t round = round_;
            changed_.wait(guard, [&] { return stopped_ || round_ != round; });
            if (round_ == round) return false;
        } else {
            if (round_ > 0) walls_[section_] += latest_ - moment_;
            moment_ = latest_;
            section_ = section;
            arrived_ = 0;
            then(moment_);
            ++round_;
            changed_.notify_all();
        }
        const double moment = moment_;
        guard.unlock();
        clock_.catch_up(moment);
        return true;
    }
    // After all threads have ended.
    double moment() const { return moment_; }
    const std::vector<double>& walls() const { return walls_; }

    bool wait_for_turn(std::uint32_t step) {
        if (!until([&] { return turn_ == step; })) return false;
        if (clock_.simulated()) clock_.catch_up(turn_moment_);
        return true;
    }
    // Of the thread whose step comes next.
    void give_turn(std::uint32_t step) {
        if (clock_.simulated()) turn_moment_ = clock_.now();
        turn_ = step;
        wake();
    }

    bool wait_for(std::size_t slot, std::uint32_t count) {
        Told& told = told_[slot];
        if (told.count < count && !until([&] { return told.count >= count; })) return false;
        if (clock_.simulated()) clock_.catch_up(told.moment);
        return true;
    }
    void tell(std::size_t slot) {
        Told& told = told_[slot];
        if (clock_.simulated()) {
            const double now = clock_.now();
            double before = told.moment;
            while (before < now && !told.moment.compare_exchange_weak(before, now)) {
            }
        }
        ++told.count;
        wake();
    }

  private:
    struct Told {
        std::atomic<std::uint32_t> count{0};
        std::atomic<double> moment{0};
    };
    static constexpr int kLooks = 200;

    // `reached` changes before wake() is called, and both go by sequentially consistent atomics:
    // the one who changes it sees the sleeper, or the sleeper sees the change.
    template <class Reached>
    bool until(Reached reached) {
        for (int look = 0; look < kLooks; ++look) {
            if (stopped()) return false;
            if (reached()) return true;
            std::this_thread::yield();
        }
        std::unique_lock guard(lock_);
        ++sleepers_;
        changed_.wait(guard, [&] { return stopped_ || reached(); });
        --sleepers_;
        return !stopped_;
    }
    void wake() {
        if (sleepers_ == 0) return;
        const std::lock_guard guard(lock_);
        changed_.notify_all();
    }

    const Clock& clock_;
    const std::size_t threads_;
    std::atomic<bool> stopped_{false};
    std::atomic<int> sleepers_{0};
    std::atomic<std::uint32_t> turn_{0};
    std::atomic<double> turn_moment_{0};
    const std::unique_ptr<Told[]> told_;
    std::mutex lock_;
    std::condition_variable changed_;
    // With the lock held.
    std::size_t arrived_ = 0;
    std::uint64_t round_ = 0;
    double latest_, moment_ = 0;
    std::size_t section_ = 0;
    std::vector<double> walls_;
};

}  // namespace vramkit::lab
