// Swapping out and in.
#include <algorithm>
#include <deque>

#include "base/scopes.h"
#include "swap/engine.h"

namespace vramkit::swap {
namespace {

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Adds how far a swap came to a failure's message.
void explain(Failure& why, const char* what, std::uint64_t done, std::uint64_t wanted) {
    if (!why.message.empty()) why.message += ". ";
    why.message += std::string(what) + " stopped after " + mebibytes(done) + " of " +
                   mebibytes(wanted) + ". Nothing is lost: the rest is where it was";
}

std::uint64_t bytes_of(std::span<Chunk* const> chunks) {
    std::uint64_t sum = 0;
    for (const Chunk* chunk : chunks) sum += chunk->bytes;
    return sum;
}

}  // namespace

bool Engine::swap_out(std::uint64_t bytes, Credits& credits, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    try {
        return swap_out_locked(bytes, credits, why);
    } catch (const std::bad_alloc&) {
        Failure ignored;
        mover_->abandon(ignored);
        why = no_host_memory();
        return false;
    }
}

bool Engine::swap_out_locked(std::uint64_t bytes, Credits& credits, Failure& why) {
    if (!mover_->settle(why) || !finish_arriving(why)) return false;
    const std::uint64_t cleaned = clean(false);
    if (cleaned > 0) credits.give(cleaned);
    if (cleaned >= bytes) return true;
    const std::vector<Chunk*> leaving = choose(bytes - cleaned);
    std::vector<Hash> hashes;
    const std::vector<bool> unchanged = find_unchanged(leaving, hashes);
    // Chunks that need no copy go first: their memory is free at once.
    std::uint64_t done = 0;
    bool going_well = true;
    const auto left = [&](Chunk& chunk) {
        if (!leave(chunk, credits, why)) return false;
        done += chunk.bytes;
        return true;
    };
    for (std::size_t number = 0; going_well && number < leaving.size(); ++number) {
        Chunk& chunk = *leaving[number];
        if (!unchanged[number]) continue;
        going_well = left(chunk);
        if (!going_well) continue;
        ++counters_.dropped;
        counters_.dropped_bytes += chunk.bytes;
    }
    std::deque<std::size_t> copying;
    const auto land = [&] {
        const std::size_t number = copying.front();
        Chunk& chunk = *leaving[number];
        copying.pop_front();
        Failure here;
        bool landed = mover_->wait_out(here);
        if (landed) {
            ++counters_.copies_out;
            counters_.copied_out_bytes += chunk.bytes;
            chunk.hashed = !hashes.empty();
            if (chunk.hashed) chunk.hash = hashes[number];
            landed = leave(chunk, credits, here);
        }
        if (landed) {
            done += chunk.bytes;
        } else if (going_well) {
            why = here;
            going_well = false;
        }
    };
    for (std::size_t number = 0; going_well && number < leaving.size(); ++number) {
        if (unchanged[number]) continue;
        if (copying.size() == Mover::kWindow) land();
        if (!going_well) break;
        going_well = start_out(*leaving[number], leaving, why);
        if (going_well) copying.push_back(number);
    }
    while (!copying.empty()) land();
    if (!going_well) explain(why, "swapping out", done, bytes_of(leaving));
    return going_well;
}

std::vector<Chunk*> Engine::choose(std::uint64_t bytes) {
    std::vector<Chunk*> leaving;
    for (auto& [address, chunk] : space_->chunks()) {
        if (chunk.state == State::resident) leaving.push_back(&chunk);
    }
    std::stable_sort(leaving.begin(), leaving.end(), [](const Chunk* one, const Chunk* other) {
        return one->last_use < other->last_use;
    });
    std::uint64_t sum = 0;
    std::size_t count = 0;
    while (count < leaving.size() && sum < bytes) sum += leaving[count++]->bytes;
    leaving.resize(count);
    return leaving;
}

std::vector<bool> Engine::find_unchanged(std::span<Chunk* const> chunks,
                                         std::vector<Hash>& hashes) {
    std::vector<bool> unchanged(chunks.size(), false);
    Failure ignored;
    // Without hashes everything is copied: slower, and no less right.
    if (hasher_ == nullptr || !hasher_->hash(chunks, hashes, ignored)) {
        hashes.clear();
        return unchanged;
    }
    counters_.hashed += chunks.size();
    for (std::size_t number = 0; number < chunks.size(); ++number) {
        unchanged[number] = chunks[number]->hashed && chunks[number]->hash == hashes[number];
    }
    return unchanged;
}

bool Engine::start_out(Chunk& chunk, std::span<Chunk* const> leaving, Failure& why) {
    if (!chunk.copy && !take_host_piece(chunk, leaving, why)) return false;
    chunk.hashed = false;
    if (mover_->copy_out(chunk, why)) return true;
    host_.give(chunk.copy);
    return false;
}

// If the limit of host memory is reached, chunks that stay on the card lose their copies.
bool Engine::take_host_piece(Chunk& chunk, std::span<Chunk* const> leaving, Failure& why) {
    if (host_.take(chunk.bytes, chunk.copy, why)) return true;
    if (why.kind != Failure::Kind::out_of_memory) return false;
    for (auto& [address, other] : space_->chunks()) {
        const bool stays = other.state == State::resident && other.copy &&
                           std::find(leaving.begin(), leaving.end(), &other) == leaving.end();
        if (!stays) continue;
        host_.give(other.copy);
        other.hashed = false;
        if (host_.take(chunk.bytes, chunk.copy, why)) return true;
    }
    return false;
}

bool Engine::leave(Chunk& chunk, Credits& credits, Failure& why) {
    const std::uint64_t before = card_.used();
    if (!card_.unback(chunk, why)) return false;
    set_state(chunk, State::swapped);
    if (before > card_.used()) credits.give(before - card_.used());
    return true;
}

bool Engine::swap_in(Credits& credits, std::uint64_t& missing, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    try {
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
