// What the daemon says, and what is done about it at once.
#include <string.h>

#include <algorithm>
#include <utility>

#include "share/agent.h"
#include "share/log.h"
#include "share/program.h"

namespace vramkit::share {
namespace {

constexpr std::uint64_t kPrepareStep = std::uint64_t{256} << 20;

}  // namespace

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
            known->number = std::uint32_t{card->card};
            known->limit = std::max(std::uint64_t{card->limit}, std::uint64_t{1});
            if (known->card != nullptr) known->card->set_limit(known->limit);
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
        if (page) givers_.insert_or_assign(std::uint64_t{source->giver}, std::move(page));
        sources_[std::uint32_t{source->source}] = {source->card, source->giver, source->from,
                                                   source->until};
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
        expects_turns_.store(true, std::memory_order_relaxed);  // not all programs fit
        to_prepare_ = std::max(to_prepare_, std::uint64_t{ahead->bytes});
        go_on_preparing();
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
    say_need(*known);
    connection_.send(wire::moved_message{order.card, order.turn, unused + credits.sum});
    return true;
}

void Agent::end_source(const wire::source_ended_message& ended) {
    const auto found = sources_.find(std::uint32_t{ended.source});
    if (found == sources_.end()) return;
    const Source source = found->second;
    sources_.erase(found);
    Known* const known = known_of(source.card);
    if (known == nullptr) return;
    if (ended.upto > source.at) get_credits(*known, ended.upto - source.at);
}

// In steps, so that the program's allocations do not wait for all of it. What is asked for while an
// earlier order is followed comes after it.
void Agent::go_on_preparing() {
    if (to_prepare_ == 0 || preparer_.is_busy() || leaving_.load()) return;
    std::uint64_t in_use = 0;
    for (Known* const known : all_known()) {
        in_use += known->card != nullptr ? known->card->in_use() : 0;
    }
    const std::uint64_t bytes = std::min(std::exchange(to_prepare_, 0), in_use);
    preparer_.start([this, bytes] {
        for (std::uint64_t step = kPrepareStep;; step += kPrepareStep) {
            const std::uint64_t now = std::min(step, bytes);
            Failure why;
            if (!program_.prepare_host(now, why)) {
                log("preparing host memory: %s", why.message.c_str());
                return;
            }
            if (now == bytes || leaving_.load()) return;
        }
    });
}

}  // namespace vramkit::share
