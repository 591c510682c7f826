#include "share/agent.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "share/log.h"
#include "share/program.h"
#include "share/quiet_thread.h"

namespace vramkit::share {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerPatience = 2s;   // for the daemon's first answer
constexpr auto kWelcomePatience = 5s;  // for any
constexpr auto kLeavePatience = 5s;    // for the agent's own thread
constexpr auto kConnectAgain = 500ms;
constexpr auto kTick = 100ms;
constexpr auto kIdleAfter = 500ms;     // without a launch
constexpr auto kClosePatience = 20ms;  // for one attempt
constexpr auto kErrorPatience = 1s;    // of a driver that fails to bring memory
constexpr auto kRoomPatience = 30s;    // ... since the card is full in spite of credits
constexpr std::uint64_t kKeptSpare = std::uint64_t{32} << 20;
constexpr std::uint64_t kPrepareStep = std::uint64_t{256} << 20;

std::uint64_t start_ticks() {
    char text[1024];
    const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = '\0';
    // Field 22; the name, field 2, may have spaces and ends with the last parenthesis.
    const char* at = strrchr(text, ')');
    for (int field = 2; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
    return at != nullptr ? strtoull(at + 1, nullptr, 10) : 0;
}

std::string program_name() {
    char text[256];
    const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file < 0) return "";
    const ssize_t size = read(file, text, sizeof text);
    close(file);
    std::string name;
    for (ssize_t at = 0; at < size; ++at) name += text[at] != '\0' ? text[at] : ' ';
    while (!name.empty() && name.back() == ' ') name.pop_back();
    return name;
}

}  // namespace

void Agent::add(Card& card) {
    std::unique_lock guard(facts_);
    CUuuid uuid{};
    if (program_.call().cuDeviceGetUuid_v2(&uuid, card.device()) != CUDA_SUCCESS) return;
    for (const auto& known : cards_) {
        if (memcmp(&known->uuid, &uuid, sizeof uuid) != 0) continue;
        // Its context was reset. The daemon knows it by its number already.
        if (known->announced) card.credits().set_unlimited(false);
        card.set_limit(std::max<std::uint64_t>(known->limit, 1));
        known->card = &card;
        return;
    }
    auto known = std::make_unique<Known>();
    known->card = &card;
    known->uuid = uuid;
    Known& added = *known;
    cards_.push_back(std::move(known));
    if (!has_thread_) {
        has_thread_ = true;
        try {
            start_quiet_thread([this] { run(); });
            runs_ = true;
        } catch (const std::system_error&) {
            log("no thread can be started: the program runs as if it were alone");
            return;  // and so it does: nobody closes its gate
        }
    }
    changed_.wait_for(guard, kAnswerPatience,
                      [&] { return added.number.has_value() || (tried_ && !connected_.load()); });
}

bool Agent::remove(Card& card) {
    std::unique_lock guard(facts_);
    for (const auto& known : cards_) {
        if (known->card != &card) continue;
        if (!runs_) {
            known->card = nullptr;
            return true;
        }
        known->leaves = true;
        const auto gone = [&] { return known->card == nullptr; };
        if (changed_.wait_for(guard, kLeavePatience, gone)) return true;
        known->leaves = false;
        return false;
    }
    return true;
}

void Agent::removed() {
    const std::lock_guard guard(facts_);
    for (const auto& known : cards_) known->leaves = false;
}

// Cards whose memory and context end. What is held for them is given when they are gone.
void Agent::let_go() {
    const std::lock_guard guard(facts_);
    for (const auto& known : cards_) {
        if (known->card != nullptr && known->leaves) {
            known->to_give = known->card->credits().take_up_to(wire::kMostBytes) +
                             known->card->memory().card_bytes() + known->unswappable_held;
            known->unswappable_held = 0;
            known->card = nullptr;
            changed_.notify_all();
        }
        if (known->leaves || known->to_give == 0) continue;
        if (!known->number || !page_) continue;
        page_.give(*known->number, std::exchange(known->to_give, 0));
        known->said = {};
        known->said.card = *known->number;
        connection_.send(known->said);
    }
}

void Agent::want() {
    const std::lock_guard guard(facts_);
    if (!connected_.load()) return;
    say_want();
}

void Agent::wait_for_credits() {
    std::unique_lock guard(facts_);
    for (const auto& known : cards_) say_need(*known);
    changed_.wait_for(guard, 50ms);
}

bool Agent::idle() {
    const std::lock_guard guard(facts_);
    if (!connected_.load() || leases_.load() > 0) return false;
    said_idle_.store(true);
    return true;
}

bool Agent::lease(bool begins) {
    leases_.fetch_add(begins ? 1 : -1);
    return connected_.load();
}

void Agent::run() {
    while (!program_.forked()) {
        try {
            go_on();
        } catch (const std::bad_alloc&) {
            log("the host is out of memory");
            lost();
            std::this_thread::sleep_for(kConnectAgain);
        }
    }
}

void Agent::go_on() {
    if (!connected_.load() && !connect()) {
        let_go();
        help_itself();
        std::this_thread::sleep_for(kConnectAgain);
        return;
    }
    let_go();
    // What does not greet is no daemon, and the program is alone until then.
    const bool greeted = static_cast<bool>(page_);
    if (greeted) announce();
    const bool mute = !greeted && Clock::now() >= connected_at_ + kWelcomePatience;
    if (mute || !connection_.receive(patience_ns())) {
        lost();
        std::this_thread::sleep_for(kConnectAgain);
        help_itself();
        return;
    }
    hear_all();
    if (page_) act();
}

// How long there is nothing to do unless the daemon says something.
std::int64_t Agent::patience_ns() const {
    const auto ns = [](std::chrono::nanoseconds time) { return std::int64_t{time.count()}; };
    if (phase_ == Phase::stopping) return ns(200us);
    const bool bringing = phase_ == Phase::starting || filling_;
    if (bringing || !sources_.empty()) return ns(100us);
    return ns(20ms);
}

bool Agent::connect() {
    const Settings& settings = program_.settings();
    bool done = connection_.open(settings.socket.c_str());
    if (done) {
        wire::hello_message hello{};
        hello.protocol = wire::kVersion;
        hello.pid = static_cast<wire::u32>(getpid());
        hello.start_ticks = start_ticks();
        hello.weight_milli = settings.weight_milli;
        hello.priority = settings.priority;
        hello.memory_limit = settings.memory;
        hello.mode = static_cast<wire::u8>(settings.mode);
        wire::put_text(hello.name, program_name());
        done = connection_.send(hello);
    }
    const std::lock_guard guard(facts_);
    for (const auto& known : cards_) {
        known->announced = false;
        known->number.reset();
    }
    connected_.store(done);
    connected_at_ = Clock::now();
    tried_ = true;
    if (done) {
        log("connected with the daemon at %s", settings.socket.c_str());
    } else {
        changed_.notify_all();
    }
    return done;
}

void Agent::lost() {
    log("the connection with the daemon is lost: the program goes on");
    connection_.close();
    // What others have given up to now belongs to the program, and counts as held.
    if (phase_ != Phase::stopped || filling_) pull_credits();
    sources_.clear();
    givers_.clear();
    page_ = CreditPage();
    {
        const std::lock_guard guard(facts_);
        connected_.store(false);
        for (const auto& known : cards_) {
            known->to_give = 0;
            if (known->card != nullptr) known->card->credits().set_unlimited(true);
        }
    }
    if (phase_ == Phase::stopping) open_gate();
    changed_.notify_all();
}

void Agent::help_itself() {
    if (phase_ == Phase::running && program_.somebody_lacks() &&
        program_.close_gate(kClosePatience)) {
        phase_ = Phase::stopping;
        ++asked_;
    }
    if (phase_ == Phase::stopping) {
        if (quiet_since_.load() != asked_) return ask_for_quiet();
        phase_ = Phase::stopped;
    }
    if (phase_ == Phase::running) return;
    if (phase_ == Phase::stopped && !program_.somebody_waits()) return;
    Failure why;
    if (program_.bring_everything(why) == Program::Brought::all) {
        log("no daemon: the program goes on by itself");
        attempts_ = 0;
        open_gate();
        return;
    }
    // Programs that have a part of the card each would wait for each other for ever: after some
    // attempts, not as many in each of them, one makes room for the others and goes on later.
    if (++attempts_ < next_retreat_) return;
    next_retreat_ = attempts_ + 2 + static_cast<unsigned>(random_()) % 4;
    log("no daemon, and no room for all memory of the program: it makes room for others");
    for (Known* const known : all_known()) {
        if (known->card == nullptr) continue;
        program_.move_out(*known->card, swap::kEverything, known->card->credits(), why);
    }
}

// Cards that are new, or all after the connection was made again.
void Agent::announce() {
    const std::lock_guard guard(facts_);
    bool all = true, any = false;
    for (const auto& known : cards_) {
        if (known->card == nullptr) continue;
        all = all && known->announced;
        any = any || known->announced;
    }
    if (all) return;
    for (const auto& known : cards_) {
        if (known->announced || known->card == nullptr) continue;
        // From here on the program takes nothing that the daemon has not given.
        const std::uint64_t held = program_.limit_credits(*known->card);
        known->unswappable_held = 0;
        known->promised.store(0);
        known->required = 0;
        known->said = {};
        wire::device_message device{};
        memcpy(device.uuid, known->uuid.bytes, sizeof device.uuid);
        device.total_bytes = known->card->card_bytes();
        device.held = held;
        known->announced = true;
        connection_.send(device);
    }
    if (any) return;
    // A program that runs says so when its cards have numbers, see hear(). A new one waits.
    if (turn_ == 0 && phase_ == Phase::running && !program_.has_memory()) {
        if (program_.close_gate(kClosePatience)) phase_ = Phase::stopped;
    }
}

void Agent::hear_all() {
    while (const auto frame = connection_.next_frame()) {
        if (hear(*frame)) continue;
        log("message %u of the daemon cannot be followed: the connection ends", frame->number);
        connection_.close();
    }
}

// False: it is none of the daemon's messages, or not allowed now.
bool Agent::hear(const wire::Frame& frame) {
    if (frame.as<wire::welcome_message>()) {
        page_ = CreditPage(connection_.next_descriptor(), true);
    } else if (const auto card = frame.as<wire::card_message>()) {
        const std::lock_guard guard(facts_);
        bool first = false;
        for (const auto& known : cards_) {
            if (memcmp(known->uuid.bytes, card->uuid, sizeof card->uuid) != 0) continue;
            first = !known->number.has_value();
            known->number = card->card;
            known->limit = card->limit;
            if (known->card != nullptr)
                known->card->set_limit(std::max<std::uint64_t>(card->limit, 1));
            if (first) say_usage(*known);
        }
        const bool all = std::all_of(cards_.begin(), cards_.end(), [](const auto& known) {
            return known->number || known->card == nullptr;
        });
        if (first && all) {
            if (phase_ == Phase::running) connection_.send(wire::running_message{turn_});
            if (phase_ != Phase::running && program_.somebody_waits()) say_want();
        }
        changed_.notify_all();
    } else if (const auto grant = frame.as<wire::grant_message>()) {
        if (Known* const known = known_of(grant->card)) get_credits(*known, grant->bytes);
    } else if (const auto source = frame.as<wire::source_message>()) {
        CreditPage page(connection_.next_descriptor(), false);
        if (page) givers_.insert_or_assign(source->giver, std::move(page));
        sources_[source->source] = {source->card, source->giver, source->from, source->until};
        if (Known* const known = known_of(source->card)) {
            known->promised.fetch_add(source->until - source->from);
        }
    } else if (const auto ended = frame.as<wire::source_ended_message>()) {
        end_source(*ended);
    } else if (const auto stop = frame.as<wire::stop_message>()) {
        begin_stop(stop->turn);
    } else if (const auto order = frame.as<wire::evict_message>()) {
        return evict(*order);
    } else if (const auto fill = frame.as<wire::fill_message>()) {
        const std::lock_guard guard(facts_);
        turn_ = fill->turn;
        filling_ = phase_ == Phase::stopped;
    } else if (const auto begin = frame.as<wire::start_message>()) {
        begin_start(begin->turn);
    } else if (const auto ahead = frame.as<wire::prepare_message>()) {
        prepare(ahead->bytes);
    } else if (const auto refuse = frame.as<wire::refuse_message>()) {
        log("the daemon ends the connection: %.248s", refuse->text);
        connection_.close();
    } else {
        return false;
    }
    return true;
}

void Agent::begin_stop(std::uint64_t turn) {
    if (phase_ == Phase::stopped) {  // it was never let in
        connection_.send(wire::stopped_message{turn});
        return;
    }
    expects_turns_.store(true, std::memory_order_relaxed);
    phase_ = Phase::stopping;
    closed_ = LaunchGate::is_closed();  // starting: its gate is closed
    ++asked_;
}

void Agent::begin_start(std::uint64_t turn) {
    {
        const std::lock_guard guard(facts_);
        turn_ = turn;
    }
    if (phase_ == Phase::running) {
        connection_.send(wire::running_message{turn});
        return;
    }
    filling_ = false;
    phase_ = Phase::starting;  // also where a stop is taken back
}

bool Agent::evict(const wire::evict_message& order) {
    Known* const known = known_of(order.card);
    if (known == nullptr) return false;
    // Work may be using the memory. One that was told to start by an earlier daemon is quiet too.
    // A daemon that does not know yet that the program runs is told so by what it gets.
    const bool quiet = phase_ == Phase::stopped || phase_ == Phase::starting;
    if (!quiet || !LaunchGate::is_closed()) {
        connection_.send(wire::moved_message{order.card, order.turn, 0});
        return true;
    }
    phase_ = Phase::stopped;
    filling_ = false;
    if (known->card == nullptr) {
        connection_.send(wire::moved_message{order.card, order.turn, 0});
        return true;
    }
    // What is held and not used goes first.
    const std::uint64_t unused = known->card->credits().take_up_to(order.bytes);
    page_.give(order.card, unused);
    struct Page final : swap::Credits {
        Page(CreditPage& to, std::uint32_t on) : page(to), card(on) {}
        bool take(std::uint64_t) override { return false; }
        void give(std::uint64_t bytes) override {
            page.give(card, bytes);
            sum += bytes;
        }
        CreditPage& page;
        const std::uint32_t card;
        std::uint64_t sum = 0;
    } credits(page_, order.card);
    Failure why;
    if (unused < order.bytes &&
        !program_.move_out(*known->card, order.bytes - unused, credits, why)) {
        fail("moving memory to the host", why);
    }
    // Whole chunks leave: what is more than was asked for is the daemon's too.
    const std::lock_guard guard(facts_);
    say_usage(*known);
    connection_.send(wire::moved_message{order.card, order.turn, unused + credits.sum});
    return true;
}

void Agent::end_source(const wire::source_ended_message& ended) {
    const auto found = sources_.find(ended.source);
    if (found == sources_.end()) return;
    const Source source = found->second;
    sources_.erase(found);
    Known* const known = known_of(source.card);
    if (known == nullptr) return;
    known->promised.fetch_sub(source.until - source.at);
    if (ended.upto > source.at) get_credits(*known, ended.upto - source.at);
}

// In steps, so that the program's allocations do not wait for all of it.
void Agent::prepare(std::uint64_t bytes) {
    expects_turns_.store(true, std::memory_order_relaxed);  // not all programs fit
    if (preparer_.is_busy()) return;
    std::uint64_t in_use = 0;
    for (Known* const known : all_known()) {
        in_use += known->card != nullptr ? known->card->in_use() : 0;
    }
    bytes = std::min(bytes, in_use);
    preparer_.start([this, bytes] {
        for (std::uint64_t step = kPrepareStep;; step += kPrepareStep) {
            const std::uint64_t now = std::min(step, bytes);
            Failure why;
            if (!program_.prepare_host(now, why)) {
                log("preparing host memory: %s", why.message.c_str());
                return;
            }
            if (now == bytes) return;
        }
    });
}

void Agent::act() {
    if (phase_ == Phase::stopping) go_on_stopping();
    if (phase_ == Phase::starting || filling_) go_on_bringing();
    if (phase_ == Phase::running && !sources_.empty()) pull_credits();
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
    for (const auto& known : cards_) known->required = 0;
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
                known->promised.fetch_sub(given - from.at);
                get_credits(*known, given - from.at);
                from.at = given;
            }
        }
        source = from.at == from.until ? sources_.erase(source) : std::next(source);
    }
}

void Agent::every_so_often() {
    const auto now = Clock::now();
    next_tick_ = now + kTick;
    {
        const std::lock_guard guard(facts_);
        for (const auto& known : cards_) {
            if (!known->number || known->card == nullptr) continue;
            hold_unswappable(*known);
            const bool running = phase_ == Phase::running;
            // Said again while it lasts: what was promised may have come to nothing since.
            known->required = 0;
            if (phase_ == Phase::starting) say_need(*known);
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
    if (phase_ == Phase::running) look_whether_idle(now);
}

void Agent::look_whether_idle(Clock::time_point now) {
    const std::uint64_t launches = program_.launches();
    if (launches != launches_) {
        launches_ = launches;
        last_launch_ = now;
        idle_is_checked_ = false;
        said_idle_.store(false);
        if (is_idle_) {
            is_idle_ = false;
            want();
        }
        return;
    }
    const bool due = said_idle_.load() || now - last_launch_ >= kIdleAfter;
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

Agent::Known* Agent::known_of(std::uint32_t number) {
    for (Known* const known : all_known()) {
        if (known->number == number) return known;
    }
    return nullptr;
}

// They stay where they are; threads of the program may add others at any time.
std::vector<Agent::Known*> Agent::all_known() {
    const std::lock_guard guard(facts_);
    std::vector<Known*> all;
    for (const auto& known : cards_) all.push_back(known.get());
    return all;
}

void Agent::say_usage(Known& known) {
    if (!known.number || known.card == nullptr) return;
    const swap::Usage usage = known.card->memory().usage();
    const swap::Traffic traffic = known.card->memory().traffic();
    wire::usage_message now{};
    now.card = *known.number;
    now.resident = usage.resident + usage.arriving;
    now.swapped = usage.swapped;
    now.unbacked = usage.unbacked;
    now.unswappable = known.card->unswappable();
    now.out_bytes = traffic.out;
    now.in_bytes = traffic.in;
    now.waited_ns = program_.waited_ns();
    now.launches = program_.launches();
    if (memcmp(&now, &known.said, sizeof now) == 0) return;
    known.said = now;
    connection_.send(now);
}

void Agent::say_all_usage() {
    for (const auto& known : cards_) say_usage(*known);
}

void Agent::say_need(Known& known) {
    if (!known.number || known.card == nullptr || !connected_.load()) return;
    const swap::Usage usage = known.card->memory().usage();
    const std::uint64_t unswappable = known.card->unswappable();
    const std::uint64_t required =
        usage.resident + usage.arriving + usage.swapped + usage.unbacked + unswappable;
    const std::uint64_t has = usage.resident + usage.arriving + known.unswappable_held +
                              known.card->credits().spare() + known.promised.load();
    if (required <= has || required == known.required) return;
    known.required = required;
    say_usage(known);
    connection_.send(wire::need_message{*known.number, required - has});
}

void Agent::say_want() {
    for (const auto& known : cards_) {
        say_usage(*known);
        known->required = 0;
        say_need(*known);
    }
    connection_.send(wire::want_message{turn_});
}

void Agent::fail(const char* what, const Failure& why) {
    std::string text = std::string(what) + ": " + std::string(why.call) + " " + why.message;
    if (text == last_failure_) return;
    last_failure_ = text;
    log("%s", text.c_str());
    wire::failed_message failed{};
    failed.code = static_cast<wire::u32>(why.code);
    wire::put_text(failed.text, text);
    connection_.send(failed);
}

}  // namespace vramkit::share
