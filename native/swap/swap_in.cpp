// Bringing chunks to the card.
#include <algorithm>
#include <new>

#include "base/host_memory.h"
#include "base/rules.h"
#include "base/scopes.h"
#include "swap/engine.h"

namespace vramkit::swap {

bool Engine::swap_in(Credits& credits, std::uint64_t& missing, Failure& why) {
    return bring_all(false, credits, missing, why);
}

bool Engine::make_all_resident(Credits& credits, std::uint64_t& missing, Failure& why) {
    return bring_all(true, credits, missing, why);
}

bool Engine::bring_all(bool unbacked, Credits& credits, std::uint64_t& missing, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    const auto to_come = [&] { return unbacked ? bytes_to_come() : usage().swapped; };
    const std::uint64_t wanted = to_come();
    Brought brought = Brought::done;
    try {
        give_released(credits);
        list_coming();
        for (; next_coming_ < coming_.size(); ++next_coming_) {
            Chunk& chunk = *coming_[next_coming_];
            if (chunk.state == State::unbacked && !unbacked) break;
            if (!chunk.is_on_card()) brought = bring(chunk, credits, why);
            if (brought != Brought::done) break;
        }
    } catch (const std::bad_alloc&) {
        why = no_host_memory();
        brought = Brought::failed;
    }
    missing = to_come();
    if (brought != Brought::failed) return true;
    explain(why, "bringing chunks to the card", wanted - missing, wanted);
    return false;
}

void Engine::list_coming() {
    if (coming_is_known_) return;
    coming_.clear();
    next_coming_ = 0;
    for (auto& [address, chunk] : space_->chunks()) {
        if (!chunk.is_on_card()) coming_.push_back(&chunk);
    }
    std::stable_partition(coming_.begin(), coming_.end(),
                          [](const Chunk* each) { return each->state == State::swapped; });
    coming_is_known_ = true;
}

bool Engine::make_resident(std::uint64_t address, std::uint64_t bytes, Credits& credits,
                           std::uint64_t& missing, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    give_released(credits);
    missing = 0;
    std::uint64_t wanted = 0;
    bool stopped = false;
    std::vector<Chunk*> chunks;
    if (!if_host_memory_allows([&] { chunks = chunks_in(address, bytes); })) {
        why = no_host_memory();
        return false;
    }
    for (Chunk* chunk : chunks) {
        if (chunk->is_on_card()) continue;
        wanted += chunk->bytes;
        // After the first that cannot come, the rest is only counted.
        const Brought brought =
            missing > 0 ? Brought::short_of_credits : bring(*chunk, credits, why);
        if (brought != Brought::done) missing += chunk->bytes;
        stopped = stopped || brought == Brought::failed;
    }
    if (stopped) explain(why, "bringing chunks to the card", wanted - missing, wanted);
    Failure finishing;
    if (finish_arriving(finishing)) return !stopped;
    if (!stopped) why = finishing;
    return false;
}

void Engine::give_released(Credits& credits) {
    const std::uint64_t released = card_.release_again();
    if (released > 0) credits.give(released);
}

Engine::Brought Engine::bring(Chunk& chunk, Credits& credits, Failure& why) {
    // What a failed call left on the card has its credits.
    const std::uint64_t needed = chunk.uses_card() ? 0 : chunk.bytes;
    if (needed > 0 && !credits.take(needed)) return Brought::short_of_credits;
    const std::uint64_t before = card_.used();
    const bool is_zero = chunk.state == State::unbacked && chunk.zero;
    const auto fill = [&] {
        if (chunk.state == State::swapped) return mover_->copy_in(chunk, why);
        return !is_zero || mover_->zero(chunk, why);
    };
    bool brought = card_.back(chunk, why);
    if (brought && !fill()) {
        Failure undoing;
        card_.unback(chunk, undoing);
        brought = false;
    }
    if (!brought) {
        // Where even the way back failed, the chunk keeps its memory and its credits.
        const std::uint64_t unused = before + needed - card_.used();
        if (unused > 0) credits.give(unused);
        return Brought::failed;
    }
    if (is_zero) {
        const bool waits = !is_broken(Rule::program_waits_for_zeros);
        set_state(chunk, waits ? State::arriving : State::resident);
        ++counters_.zeroed;
    } else if (chunk.state == State::unbacked) {
        set_state(chunk, State::resident);
    } else {
        set_state(chunk, State::arriving);
        ++counters_.copies_in;
        traffic_in_.fetch_add(chunk.bytes, std::memory_order_relaxed);
    }
    return Brought::done;
}

bool Engine::finish(Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    return finish_arriving(why);
}

bool Engine::finish_arriving(Failure& why) {
    if (!settle(why)) return false;  // the program may write next what is still read
    if (usage().arriving == 0) return true;
    if (!mover_->wait_in(why)) return false;
    for (auto& [address, chunk] : space_->chunks()) {
        if (chunk.state != State::arriving) continue;
        set_state(chunk, State::resident);
        chunk.zero = false;
        // Without its hash nobody could tell later whether the copy is still true.
        if (!chunk.hashed) host_.give(chunk.copy);
    }
    return true;
}

}  // namespace vramkit::swap
