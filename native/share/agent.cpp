// The agent's life: cards that come and go, the connection, and being alone without one.
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
constexpr auto kConnectAgain = 100ms;
constexpr auto kHelpAgain = 500ms;
// A daemon that is started again is mostly there before that, and nothing has moved meanwhile. It
// is awaited by who had a connection for as long.
constexpr auto kHelpAfter = 1s;

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
        card.set_limit(known->limit);
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
            tell_need(*known, 0);
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
    idle_after_.store(program_.launches());
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
        help_itself_in_time();
        std::this_thread::sleep_for(kConnectAgain);
        return;
    }
    let_go();
    // What does not greet is no daemon, and the program is alone until then.
    const bool greeted = static_cast<bool>(page_);
    if (greeted) announce();
    const bool mute = !greeted && Clock::now() >= connected_at_ + kWelcomePatience;
    if (mute || !connection_.receive(patience_ns())) {
        const auto now = Clock::now();
        if (greeted && now >= connected_at_ + kHelpAfter) next_help_ = now + kHelpAfter;
        lost();
        std::this_thread::sleep_for(kConnectAgain);
        help_itself_in_time();
        return;
    }
    hear_all();
    // Nothing moves between the daemon's greeting and what the program says that it holds: until
    // then it takes what it can get.
    if (greeted) act();
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

void Agent::help_itself_in_time() {
    if (Clock::now() < next_help_) return;
    help_itself();
    next_help_ = Clock::now() + kHelpAgain;
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
        known->need = 0;
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

}  // namespace vramkit::share
