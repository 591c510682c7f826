// The discrete-event core: when each operation starts and ends on the simulated cards.
//
// Operations on one lane share its rate. Kernels take what they ask for of the multiprocessors, in
// order of priority, then of start; what a wave of blocks has taken it keeps until it ends.
//
// Time moves only in step(). An operation is settled once time has passed it and never revised:
// what is issued later starts no earlier than now(). Single-threaded; the caller holds a lock.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <queue>
#include <vector>

#include "sim/profile/profile.h"
#include "sim/time/operation.h"
#include "sim/time/turns.h"

namespace vramkit::sim {

// What the core asks of its surroundings when an operation's moment has come.
class Effects {
  public:
    virtual ~Effects() = default;
    // Before started(): may put other operations before it (Core::put_before), once.
    virtual void prepare(Operation& operation) = 0;
    virtual void started(Operation& operation) = 0;
    virtual void finished(Operation& operation, double end) = 0;
    // The context is lost: the operation ends at once and does nothing.
    virtual bool lost(const Operation& operation) = 0;
    virtual bool value_reached(const Operation& operation) = 0;
    // Runs the function elsewhere; Core::host_function_returned says when it is over.
    virtual void run_host_function(Operation& operation) = 0;
};

class Core {
  public:
    Core(const Profile& profile, int devices, Effects& effects);
    ~Core();
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;

    double now() const { return now_; }

    // Other processes use the lanes too: work runs in turns. Before the first operation.
    void share(Turns& turns) { turns_ = &turns; }

    // A new operation, to be filled in and then handed to issue().
    Operation* make();
    // Takes back one that is not to be issued.
    void discard(Operation* operation) { recycle(operation); }
    static void depend(Operation* later, Operation* earlier) {
        earlier->followers.push_back(later);
        ++later->blockers;
    }
    void issue(Operation* operation);
    // Issues `first` now, which the operation that is being prepared has to wait for.
    void put_before(Operation* operation, Operation* first);

    // Handles the next event at or before `until`. False: there is none; time is then at `until`,
    // or unchanged where that is infinite.
    bool step(double until);
    // When the next event is due; infinity for none.
    double next() const;

    // An operation that waits for a value, or null.
    const Operation* waiting_for_value() const {
        return polling_.empty() ? nullptr : polling_.front();
    }
    // Memory has changed from outside: looks again at waits for a value. What they held up begins
    // with the next step.
    void look_at_values();
    void host_function_returned(Operation* operation);

    // From now on nothing begins, ends or touches memory: the machine has been replaced.
    void stop() { stopped_ = true; }

    bool kernel_running(int device) const { return kernels_running_[device] > 0; }

  private:
    struct Timer {
        double time;
        std::uint64_t sequence;
        Operation* operation;
        bool latency_over;
        bool operator>(const Timer& other) const {
            return time != other.time ? time > other.time : sequence > other.sequence;
        }
    };

    void arrive(Operation* operation);
    void begin(Operation* operation);
    void work(Operation* operation);
    void complete(Operation* operation);
    void drain();
    void share_rates();
    void share_lane(int device, Lane lane, double rate);
    void share_multiprocessors(std::vector<Operation*>& kernels);
    void take_turn(Lane lane);
    bool used_by_others(Lane lane) const;
    void set_rate(Operation* operation, double rate);
    void recycle(Operation* operation);

    const Profile& profile_;
    Effects& effects_;
    double now_ = 0;
    std::uint64_t next_sequence_ = 1;
    std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
    std::vector<Operation*> running_;  // on a lane, in order of start
    std::vector<Operation*> polling_;  // waiting for a value
    std::vector<Operation*> on_host_;  // host functions that have not returned
    std::deque<Operation*> ready_;     // everything they wait for is done
    std::vector<int> kernels_running_;
    std::vector<Operation*> spare_;
    // The newest turn on each lane, by its number. in_use: work of the lane runs or waits for it.
    struct Slot {
        Turn turn;
        bool in_use = false;
        bool begins_or_ends(double now) const {
            return in_use && (turn.start == now || turn.end <= now);
        }
    };
    Turns* turns_ = nullptr;
    std::array<Slot, kLanes> slots_;
    bool rates_stale_ = false;
    bool stopped_ = false;
};

}  // namespace vramkit::sim
