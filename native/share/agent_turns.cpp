// What goes on between the daemon's messages: the gate closes, memory comes, the gate opens.
#include <algorithm>
#include <thread>

#include "share/agent.h"
#include "share/log.h"
#include "share/program.h"

namespace vramkit::share {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 100ms;
constexpr auto kIdleAfter = 500ms;   // without a launch
constexpr auto kErrorPatience = 1s;  // of a driver that fails to bring memory
constexpr auto kRoomPatience = 30s;  // ... since the card is full in spite of credits
constexpr std::uint64_t kKeptSpare = std::uint64_t{32} << 20;

}  // namespace

void Agent::act() {
    if (phase_ == Phase::stopping) go_on_stopping();
    if (phase_ == Phase::starting || filling_) go_on_bringing();
    // Before it stops, too: a capture may need memory to its end.
    const bool works = phase_ == Phase::running || phase_ == Phase::stopping;
    if (works && !sources_.empty()) pull_credits();
    settle_needs();
    if (Clock::now() >= next_tick_) every_so_often();
}

void Agent::go_on_stopping() {
    if (!closed_) {
        closed_ = program_.close_gate(kClosePatience);
        if (!closed_) return;
    }
    if (quiet_since_.load() != asked_) {
        ask_for_quiet();
        return;
    }
    closed_ = false;
    phase_ = Phase::stopped;
    is_idle_ = false;
    const std::lock_guard guard(facts_);
    say_all_usage();
    connection_.send(wire::stopped_message{turn_});
    if (program_.somebody_waits()) say_want();
}

// Work that never ends keeps the worker, and not the agent. A wait that began for an earlier stop
// says nothing of what was issued since.
void Agent::ask_for_quiet() {
    if (quiet_.is_busy()) return;
    quiet_.start([this, asked = asked_] {
        if (program_.wait_for_work()) quiet_since_.store(asked);
    });
}

void Agent::go_on_bringing() {
    pull_credits();
    Failure why;
    switch (program_.bring_everything(why)) {
        case Program::Brought::failed:
            fail("bringing memory to the card", why);
            give_up_in_time(why);
            return;
        case Program::Brought::some: {
            const std::lock_guard guard(facts_);
            for (const auto& known : cards_) say_need(*known);
            return;
        }
        case Program::Brought::all:
            failing_since_.reset();
            if (phase_ == Phase::starting) open_gate();
    }
}

// A program must not wait for ever for what cannot come: its context may be broken, or the card be
// used by others that nobody knows of. Its calls then get the error.
void Agent::give_up_in_time(const Failure& why) {
    const auto now = Clock::now();
    if (!failing_since_) failing_since_ = now;
    const bool may_pass = why.kind == Failure::Kind::out_of_memory;
    if (now - *failing_since_ < (may_pass ? kRoomPatience : kErrorPatience)) {
        std::this_thread::sleep_for(1ms);
        return;
    }
    failing_since_.reset();
    if (phase_ != Phase::starting) return;
    log("the program goes on without all of its memory: its calls fail");
    open_gate();
}

void Agent::open_gate() {
    phase_ = Phase::running;
    filling_ = false;
    closed_ = false;
    program_.resume();
    last_launch_ = Clock::now();
    idle_is_checked_ = is_idle_ = false;
    const std::lock_guard guard(facts_);
    if (!connected_.load()) return;
    say_all_usage();
    connection_.send(wire::running_message{turn_});
}

// Those of a card that is gone go back.
void Agent::get_credits(Known& known, std::uint64_t bytes) {
    if (known.card != nullptr) {
        known.card->credits().give(bytes);
    } else {
        known.to_give += bytes;
    }
    changed_.notify_all();
}

void Agent::pull_credits() {
    for (auto source = sources_.begin(); source != sources_.end();) {
        Source& from = source->second;
        const auto giver = givers_.find(from.giver);
        Known* const known = known_of(from.card);
        if (giver != givers_.end() && known != nullptr) {
            const std::uint64_t given = std::min(giver->second.given(from.card), from.until);
            if (given > from.at) {
                get_credits(*known, given - from.at);
                from.at = given;
            }
        }
        source = from.at == from.until ? sources_.erase(source) : std::next(source);
    }
}

void Agent::settle_needs() {
    const std::lock_guard guard(facts_);
    for (const auto& known : cards_) settle_need(*known);
}

void Agent::every_so_often() {
    const auto now = Clock::now();
    next_tick_ = now + kTick;
    if (!leaving_.load()) look_at_graphs();
    go_on_preparing();
    {
        const std::lock_guard guard(facts_);
        for (const auto& known : cards_) {
            if (!known->number || known->card == nullptr) continue;
            hold_unswappable(*known);
            const bool running = phase_ == Phase::running;
            if (running && known->card->memory().bytes_to_come() == 0) {
                // What is freed and not used again is for others.
                const std::uint64_t spare = known->card->credits().spare();
                if (spare > kKeptSpare && page_) {
                    page_.give(*known->number,
                               known->card->credits().take_up_to(spare - kKeptSpare));
                }
            }
            say_usage(*known);
        }
    }
    if (phase_ == Phase::running && !leaving_.load()) look_whether_idle(now);
}

// Calls the driver, which may keep it waiting: without facts_, for which threads of the program
// wait.
void Agent::look_at_graphs() {
    std::vector<Card*> cards;
    {
        const std::lock_guard guard(facts_);
        for (const auto& known : cards_) {
            if (known->card != nullptr) cards.push_back(known->card);
        }
    }
    for (Card* const card : cards) card->look_at_graphs();
}

void Agent::look_whether_idle(Clock::time_point now) {
    const std::uint64_t launches = program_.launches();
    if (launches != launches_) {
        launches_ = launches;
        last_launch_ = now;
        idle_is_checked_ = false;
        if (is_idle_) {
            is_idle_ = false;
            want();
        }
    }
    // It may have been said since the look before this one, as the launches were made.
    const bool due = idle_after_.load() == launches || now - last_launch_ >= kIdleAfter;
    if (!due || is_idle_ || leases_.load() > 0) return;
    if (!idle_is_checked_) {
        if (quiet_.is_busy()) return;
        idle_is_checked_ = true;
        ++asked_;
        ask_for_quiet();
        return;
    }
    if (quiet_since_.load() != asked_) return;
    is_idle_ = true;
    const std::lock_guard guard(facts_);
    connection_.send(wire::idle_message{turn_});
}

// Memory that stays on the card needs credits like any other; the driver has given it already.
void Agent::hold_unswappable(Known& known) {
    const std::uint64_t now = known.card->unswappable();
    SpareCredits& credits = known.card->credits();
    if (now < known.unswappable_held) {
        credits.give(known.unswappable_held - now);
        known.unswappable_held = now;
    } else if (now > known.unswappable_held) {
        known.unswappable_held += credits.take_up_to(now - known.unswappable_held);
        say_need(known);
    }
}

}  // namespace vramkit::share
