// Bringing chunks to the card.
#include <algorithm>
#include <new>

#include "base/scopes.h"
#include "swap/engine.h"

namespace vramkit::swap {

bool Engine::swap_in(Credits& credits, std::uint64_t& missing, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    try {
        give_released(credits);
        std::vector<Chunk*> coming;
        for (auto& [address, chunk] : space_->chunks()) {
            if (chunk.state == State::swapped) coming.push_back(&chunk);
        }
        std::stable_sort(coming.begin(), coming.end(), [](const Chunk* one, const Chunk* other) {
            return one->last_use > other->last_use;
        });
        return bring(coming, credits, missing, why);
    } catch (const std::bad_alloc&) {
        why = no_host_memory();
        return false;
    }
}

bool Engine::make_resident(std::uint64_t address, std::uint64_t bytes, Credits& credits,
                           std::uint64_t& missing, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    try {
        give_released(credits);
        Failure finishing;
        const bool brought = bring(space_->chunks_in(address, bytes), credits, missing, why);
        if (finish_arriving(finishing)) return brought;
        if (brought) why = finishing;
        return false;
    } catch (const std::bad_alloc&) {
        why = no_host_memory();
        return false;
    }
}

void Engine::give_released(Credits& credits) {
    const std::uint64_t released = card_.release_again();
    if (released > 0) credits.give(released);
}

bool Engine::bring(std::span<Chunk* const> chunks, Credits& credits, std::uint64_t& missing,
                   Failure& why) {
    missing = 0;
    std::uint64_t done = 0, wanted = 0;
    bool going_well = true;
    for (Chunk* chunk : chunks) {
        if (chunk->state != State::swapped && chunk->state != State::unbacked) continue;
        wanted += chunk->bytes;
        bool short_of_credits = missing > 0;
        if (going_well && !short_of_credits) {
            going_well = bring(*chunk, credits, short_of_credits, why);
            if (going_well && !short_of_credits) done += chunk->bytes;
        }
        if (short_of_credits) missing += chunk->bytes;
    }
    if (!going_well) {
        missing = wanted - done;
        explain(why, "bringing chunks to the card", done, wanted);
    }
    return going_well;
}

bool Engine::bring(Chunk& chunk, Credits& credits, bool& short_of_credits, Failure& why) {
    // What a failed call left on the card has its credits.
    const std::uint64_t needed = chunk.uses_card() ? 0 : chunk.bytes;
    short_of_credits = needed > 0 && !credits.take(needed);
    if (short_of_credits) return true;
    const std::uint64_t before = card_.used();
    bool brought = card_.back(chunk, why);
    if (brought && chunk.state == State::swapped && !mover_->copy_in(chunk, why)) {
        Failure undoing;
        card_.unback(chunk, undoing);
        brought = false;
    }
    if (!brought) {
        // Where even the way back failed, the chunk keeps its memory and its credits.
        const std::uint64_t unused = before + needed - card_.used();
        if (unused > 0) credits.give(unused);
        return false;
    }
    if (chunk.state == State::unbacked) {
        set_state(chunk, State::resident);
    } else {
        set_state(chunk, State::arriving);
        ++counters_.copies_in;
        counters_.copied_in_bytes += chunk.bytes;
    }
    return true;
}

bool Engine::finish(Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    return finish_arriving(why);
}

bool Engine::finish_arriving(Failure& why) {
    if (usage().arriving == 0) return true;
    if (!mover_->wait_in(why)) return false;
    for (auto& [address, chunk] : space_->chunks()) {
        if (chunk.state != State::arriving) continue;
        set_state(chunk, State::resident);
        // Without its hash nobody could tell later whether the copy is still true.
        if (!chunk.hashed) host_.give(chunk.copy);
    }
    return true;
}

}  // namespace vramkit::swap
