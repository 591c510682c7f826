// The program that shares its card: one a process. What hooks ask, and what moves its memory.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/fork.h"
#include "driver/driver.h"
#include "gate/added_hooks.h"
#include "share/agent.h"
#include "share/card.h"
#include "share/hook.h"
#include "share/launch_gate.h"
#include "share/settings.h"

namespace vramkit::share {

inline constexpr int kMostCards = 16;

// Locks, in this order: cards_lock_; moving_; lives_; that of an engine. Nobody waits for the gate
// with one of them, nor for the card's work with cards_lock_, but where a context is reset.
class Program {
  public:
    // Made by the first that calls; the same for all. Never destroyed: the program may call the
    // driver to its very end.
    static Program& start(const gate::Beneath& beneath);
    static Program& get() { return *made_.load(std::memory_order_acquire); }

    const DriverTable& call() const { return driver_->call(); }
    const std::shared_ptr<Driver>& driver() const { return driver_; }
    const Settings& settings() const { return settings_; }
    LaunchGate& gate() { return gate_; }
    // The parent's memory, threads and connections do not exist here: calls are only forwarded, and
    // the driver refuses them.
    bool forked() const { return fork_.forked(); }

    // Of a device; opened when it is first asked for. Null: the driver's own error is `why`.
    Card* card(CUdevice device, Failure& why);
    // Null: not opened yet.
    Card* card_if_open(CUdevice device) {
        const bool known = device >= 0 && device < kMostCards && !forked();
        return known ? cards_[static_cast<std::size_t>(device)].load() : nullptr;
    }
    // Of the current context. Null: there is none, or the driver refused.
    Card* current_card();
    // The card that has an allocation or a mapping around this address. Null: not ours.
    Card* card_of(std::uint64_t address);
    // The card whose handle this is, or that has a handle mapped in this range. Null: not ours.
    Card* card_of_handle(std::uint64_t handle);
    Card* card_of_mapping(std::uint64_t address, std::uint64_t bytes = 1);
    template <class Visit>
    void each_card(Visit visit) {
        for (const auto& slot : cards_) {
            if (Card* const card = slot.load(std::memory_order_acquire)) visit(*card);
        }
    }

    // The program comes to an open gate with all its memory on the card, or does not pass. False
    // and an error for the program: memory could not be brought. `stream`: as call.stream() gives.
    bool enter_slowly(Passenger& me, CUstream stream, CUresult& error);
    // What is new to the card comes with the next work of the program, or here, if something is
    // captured: copies may be recorded next, and the driver looks at their addresses. A capture may
    // not end while others wait, so that room is awaited for a bounded time, once.
    void bring_for_capture();
    // Every `window` launches of a thread.
    void after_many_launches(Passenger& me, CUstream stream);

    // Memory moves only in these, one at a time. Brings to the card what is not there, as far as
    // credits allow; all: the copies are done too.
    enum class Brought : std::uint8_t { all, some, failed };
    Brought bring_everything(Failure& why);
    bool move_out(Card& card, std::uint64_t bytes, swap::Credits& credits, Failure& why);
    // Pins host memory until so many bytes are free for what may have to move.
    bool prepare_host(std::uint64_t bytes, Failure& why);
    // From now on the card's memory is taken by credits alone; returns the bytes it has.
    std::uint64_t limit_credits(Card& card);

    // Closes the gate unless something is captured: what belongs to a capture may neither wait nor
    // find memory gone. False: not within this time, and it is open.
    bool close_gate(std::chrono::nanoseconds patience);
    void resume() { gate_.open(); }
    // Waits until all work of the program is done, on all cards and in all contexts.
    bool wait_for_work();

    bool has_memory();
    bool somebody_waits() const { return waiting_.load() > 0; }
    // A thread waits for the card, which has no room although the gate is open.
    bool somebody_lacks() const { return lacking_.load() > 0; }
    std::uint64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }
    std::uint64_t launches() const;

    // For Python code in the program; false: nobody is told.
    bool say_idle() { return agent_ != nullptr && !forked() && agent_->idle(); }
    bool lease(bool begins) { return agent_ != nullptr && !forked() && agent_->lease(begins); }

    void context_made(CUcontext context, CUdevice device);
    void context_ending(CUcontext context);
    // Uses of it that the program has counted (cuCtxAttach): whether there is one only, and one
    // more or less.
    bool is_last_use(CUcontext context);
    void count_uses(CUcontext context, int change);
    // By the program itself, which may give the context back while the engine still uses it.
    void primary_retained(CUdevice device);
    // False: the program holds no reference.
    bool primary_releasing(CUdevice device);
    void primary_released(CUdevice device);
    // False: it cannot be reset now.
    bool primary_resetting(CUdevice device);
    void stream_ending(CUstream stream) { capture_ends(stream); }
    void capture_begins(CUstream stream);
    void capture_ends(CUstream stream);
    void captures_end_with(CUcontext context);
    bool is_captured(CUstream stream);

  private:
    explicit Program(const gate::Beneath& beneath);
    static DriverTable table_of(const gate::Beneath& beneath);
    template <class Test>
    Card* card_where(Test test);
    bool any_capture();
    static void in_forked_child();
    static void at_exit();
    Brought wait_for_turn(Failure& why);
    void wait_for_room();
    Brought bring_locked(Failure& why);  // with moving_
    // Everything to the host and back, at the same addresses: the self-test.
    void swap_everything();
    void log_traffic();  // with moving_

    static std::atomic<Program*> made_;

    const Settings settings_;
    const std::shared_ptr<Driver> driver_;
    const Checker checker_;
    const ForkGuard fork_;
    LaunchGate gate_;
    const std::unique_ptr<Agent> agent_;  // null: there is no daemon to speak with
    std::atomic<int> waiting_{0};         // threads at the closed gate
    std::atomic<int> lacking_{0};         // threads that the card has no room for
    std::atomic<std::uint64_t> waited_ns_{0};
    std::mutex moving_;
    std::shared_mutex lives_;  // of cards and contexts: shared by who uses them on a worker
    std::uint64_t swaps_ = 0;  // of the self-test, with moving_
    std::mutex cards_lock_;
    std::array<std::atomic<Card*>, kMostCards> cards_{};
    std::mutex contexts_lock_;
    struct OwnContext {
        CUcontext handle;
        CUdevice device;
        int uses = 1;
    };
    OwnContext* own_context(CUcontext context);      // with contexts_lock_; null: not known
    std::vector<OwnContext> contexts_;               // made by the program, not primary
    std::array<int, kMostCards> primary_retains_{};  // by the program
    std::mutex captures_lock_;
    std::map<CUstream, CUcontext> captures_;
    std::atomic<bool> has_captured_{false};    // at any time
    std::atomic<bool> capture_lacked_{false};  // room was awaited, and did not come
};

// A call on its way past the gate, from before it reaches the driver until it has returned.
class Passage {
  public:
    explicit Passage(CUstream stream) : me_(LaunchGate::mine()) { enter(stream); }
    ~Passage() {
        me_.inside.store(me_.inside.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    }
    Passage(const Passage&) = delete;
    Passage& operator=(const Passage&) = delete;

    // What the program gets instead of the call; success: it may be made.
    CUresult refused() const { return refused_; }
    Passenger& passenger() { return me_; }

  private:
    void enter(CUstream stream) {
        me_.inside.store(me_.inside.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (LaunchGate::attention() != 0) [[unlikely]] {
            Program::get().enter_slowly(me_, stream, refused_);
        }
    }

    Passenger& me_;
    CUresult refused_ = CUDA_SUCCESS;
};

}  // namespace vramkit::share
