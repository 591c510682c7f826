// Speaks with the daemon, and does what it says: closes the gate, moves memory, opens it.
//
// A thread of its own does all of it. Threads of the program only say what they lack, and wait.
// Without a daemon the program runs as if it were alone, and the agent goes on looking for one.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "share/card.h"
#include "share/credit_page.h"
#include "share/wire.h"
#include "share/worker.h"

namespace vramkit::share {

class Program;

class Agent {
  public:
    explicit Agent(Program& program) : program_(program) {}

    // The program uses a card from now on: waits, not long, until the daemon has said how much of
    // it the program may have.
    void add(Card& card);
    // A card is about to be destroyed, since its context is reset; removed() when it was. False:
    // it is in use for too long, and must stay.
    bool remove(Card& card);
    void removed();
    // A thread of the program waits at the closed gate.
    void want();
    // Memory of the program has no room on the card: waits until there is more, or a while.
    void wait_for_credits();
    // Nothing is wanted for a while; nothing is idle within a lease. False: no daemon.
    bool idle();
    bool lease(bool begins);

    // The process ends in good order: says so, without waiting for anything. From now on the driver
    // may be shutting down, and is called only for what the program itself waits for.
    void leave() {
        if (leaving_.exchange(true)) return;
        if (connected_.load()) connection_.send_at_once(wire::leaving_message{});
    }

    // Others wait for the card at times, or soon will: it must be quiet soon after a stop.
    bool expects_turns() const { return expects_turns_.load(std::memory_order_relaxed); }

    void forget_in_child() { connection_.forget(); }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kClosePatience{20};  // for one attempt
    static constexpr std::uint64_t kNever = ~std::uint64_t{0};

    // stopped   the gate is closed and the card done; memory leaves, or comes ahead of a turn
    // starting  memory comes, then the gate opens
    // running   the gate is open
    // stopping  the gate closes, or the card is not done yet
    enum class Phase : std::uint8_t { stopped, starting, running, stopping };

    struct Known {
        Card* card = nullptr;  // null: its context was reset
        bool leaves = false;
        std::uint64_t to_give = 0;  // once it is gone
        std::uint64_t limit = 0;    // as the daemon has told it; 0: not yet
        CUuuid uuid{};
        bool announced = false;
        std::optional<std::uint32_t> number;  // the daemon's
        std::uint64_t unswappable_held = 0;   // credits held for what cannot be swapped
        std::uint64_t need = 0;               // as last said
        wire::usage_message said{};
    };
    struct Source {
        std::uint32_t card = 0;
        std::uint64_t giver = 0;
        std::uint64_t at = 0, until = 0;
    };

    void run();
    void go_on();
    bool connect();
    void let_go();
    void lost();
    // Without a daemon: who waits gets in as soon as the card has room.
    void help_itself();
    void help_itself_in_time();
    void announce();
    void hear_all();
    bool hear(const wire::Frame& frame);
    void begin_stop(std::uint64_t turn);
    void begin_start(std::uint64_t turn);
    bool evict(const wire::evict_message& order);  // false: not allowed now
    void end_source(const wire::source_ended_message& ended);
    void go_on_preparing();

    void act();
    void go_on_stopping();
    void ask_for_quiet();
    void go_on_bringing();
    void give_up_in_time(const Failure& why);
    void open_gate();
    void get_credits(Known& known, std::uint64_t bytes);
    void pull_credits();
    void settle_needs();
    void every_so_often();
    void look_at_graphs();
    void look_whether_idle(Clock::time_point now);
    void hold_unswappable(Known& known);
    std::int64_t patience_ns() const;

    Known* known_of(std::uint32_t number);
    std::vector<Known*> all_known();
    // With facts_: threads of the program say them too.
    void say_usage(Known& known);
    void say_all_usage();
    struct Balance {
        std::uint64_t needed = 0;  // on the card, while the program runs
        std::uint64_t held = 0;    // of it, and of credits
    };
    static Balance balance_of(Known& known);
    // Where credits do not suffice: all that the program must hold to run on. That is no difference
    // from what it holds, so that nothing that crosses it on its way makes it wrong.
    void say_need(Known& known);
    // What was said is kept true: the daemon goes by it until it hears something else. By the
    // agent's thread.
    void settle_need(Known& known);
    void tell_need(Known& known, std::uint64_t bytes);
    void say_want();
    void fail(const char* what, const Failure& why);

    Program& program_;
    wire::Connection connection_;
    std::atomic<bool> connected_{false};
    std::atomic<bool> leaving_{false};
    bool has_thread_ = false;  // or could have none
    bool runs_ = false;

    std::mutex facts_;
    std::condition_variable changed_;
    std::vector<std::unique_ptr<Known>> cards_;
    std::uint64_t turn_ = 0;
    bool tried_ = false;  // to connect, once at least

    std::atomic<int> leases_{0};
    std::atomic<std::uint64_t> idle_after_{kNever};  // launches, as last said
    std::atomic<bool> expects_turns_{false};

    // Of the agent's thread alone.
    Phase phase_ = Phase::running;
    bool filling_ = false;  // stopped, and memory may come
    bool closed_ = false;   // stopping, and the gate is
    CreditPage page_;
    std::map<std::uint64_t, CreditPage> givers_;
    std::map<std::uint32_t, Source> sources_;
    Worker quiet_;
    std::uint64_t asked_ = 0;                    // whether all work is done, so many times
    std::atomic<std::uint64_t> quiet_since_{0};  // for which of them the answer was yes
    Worker preparer_;
    std::uint64_t to_prepare_ = 0;  // bytes of host memory that it has not begun with
    Clock::time_point next_tick_{}, connected_at_{}, next_help_{};
    unsigned attempts_ = 0, next_retreat_ = 3;  // without a daemon
    std::minstd_rand random_{static_cast<unsigned>(getpid())};
    std::uint64_t launches_ = 0;
    Clock::time_point last_launch_{};
    bool idle_is_checked_ = false;
    bool is_idle_ = false;
    std::string last_failure_;
    std::optional<Clock::time_point> failing_since_;
};

}  // namespace vramkit::share
