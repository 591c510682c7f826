// What the agent says to the daemon: facts, needs, failures.
#include <string.h>

#include "share/agent.h"
#include "share/log.h"
#include "share/program.h"

namespace vramkit::share {

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

Agent::Balance Agent::balance_of(Known& known) {
    const swap::Usage usage = known.card->memory().usage();
    const std::uint64_t on_card = usage.resident + usage.arriving + usage.unreleased;
    return {on_card + usage.swapped + usage.unbacked + known.card->unswappable(),
            on_card + known.unswappable_held + known.card->credits().spare()};
}

void Agent::say_need(Known& known) {
    if (known.card == nullptr) return;
    const Balance now = balance_of(known);
    if (now.needed > now.held) tell_need(known, now.needed);
}

void Agent::settle_need(Known& known) {
    if (known.card == nullptr || known.need == 0) return;
    const Balance now = balance_of(known);
    const bool has_all = phase_ == Phase::running && now.needed <= now.held;
    tell_need(known, has_all ? 0 : now.needed);
}

void Agent::tell_need(Known& known, std::uint64_t bytes) {
    if (!known.number || bytes == known.need || !connected_.load()) return;
    known.need = bytes;
    say_usage(known);
    connection_.send(wire::need_message{*known.number, bytes});
}

void Agent::say_want() {
    for (const auto& known : cards_) {
        say_usage(*known);
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
