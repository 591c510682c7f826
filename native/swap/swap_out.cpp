// Moving chunks to the host.
#include <algorithm>
#include <deque>
#include <new>
#include <optional>
#include <set>

#include "base/scopes.h"
#include "swap/engine.h"

namespace vramkit::swap {

// One swap out. Batch by batch: the next one is hashed while chunks of this one are copied.
class Engine::Departure {
  public:
    Departure(Engine& engine, std::vector<Chunk*> leaving, Credits& credits)
        : engine_(engine), leaving_(std::move(leaving)), credits_(credits) {}

    bool run(Failure& why) {
        std::span<Chunk* const> rest(leaving_);
        start_hashing(rest);
        while (going_well_ && !rest.empty()) {
            const auto batch = rest.first(std::min(rest.size(), Hasher::kBatch));
            rest = rest.subspan(batch.size());
            collect_hashes();
            if (!going_well_) break;
            start_hashing(rest);
            take_out(batch);
        }
        while (!copying_.empty()) land();
        // A batch that nobody wants any more must not read chunks that are freed next.
        Failure ignored;
        if (engine_.hasher_ != nullptr) engine_.hasher_->settle(ignored);
        if (going_well_) return true;
        std::uint64_t wanted = 0;
        for (const Chunk* chunk : leaving_) wanted += chunk->bytes;
        why = failure_;
        explain(why, "swapping out", done_, wanted);
        return false;
    }

  private:
    struct Copying {
        Chunk* chunk;
        std::optional<Hash> hash;
    };

    void start_hashing(std::span<Chunk* const> rest) {
        if (engine_.hasher_ == nullptr || rest.empty()) return;
        engine_.hasher_->start(rest.first(std::min(rest.size(), Hasher::kBatch)));
    }
    // Without hashes everything is copied: slower, and no less right. Only kernels that may still
    // run are in the way.
    void collect_hashes() {
        hashes_.clear();
        if (engine_.hasher_ == nullptr) return;
        Failure failure;
        if (engine_.hasher_->collect(hashes_, failure)) {
            engine_.counters_.hashed += hashes_.size();
        } else if (!engine_.hasher_->settle(failure)) {
            stop(failure);
        }
    }
    void take_out(std::span<Chunk* const> batch) {
        const auto is_unchanged = [&](std::size_t number) {
            return !hashes_.empty() && batch[number]->hashed &&
                   batch[number]->hash == hashes_[number];
        };
        const auto is_zero = [&](std::size_t number) {
            return !hashes_.empty() && hashes_[number] == engine_.zeros_.of(batch[number]->bytes);
        };
        // Chunks that need no copy go first: their memory is free at once.
        std::vector<Copying> changed;
        for (std::size_t number = 0; going_well_ && number < batch.size(); ++number) {
            if (is_zero(number)) {
                drop_zeros(*batch[number]);
            } else if (is_unchanged(number)) {
                drop(*batch[number]);
            } else {
                changed.push_back({batch[number], hashes_.empty()
                                                      ? std::nullopt
                                                      : std::optional(hashes_[number])});
            }
        }
        for (const Copying& each : changed) {
            if (copying_.size() == Mover::kWindow) land();
            if (!going_well_) return;
            Failure failure;
            if (!start_copy(*each.chunk, failure)) return stop(failure);
            copying_.push_back(each);
        }
    }
    bool start_copy(Chunk& chunk, Failure& why) {
        if (!chunk.copy && !take_host_piece(chunk, why)) return false;
        chunk.hashed = false;
        if (engine_.mover_->copy_out(chunk, why)) return true;
        engine_.host_.give(chunk.copy);
        return false;
    }
    // If the limit of host memory is reached, chunks that stay on the card lose their copies.
    bool take_host_piece(Chunk& chunk, Failure& why) {
        if (engine_.host_.take(chunk.bytes, chunk.copy, why)) return true;
        if (why.kind != Failure::Kind::out_of_memory) return false;
        if (!spare_is_known_) list_spare();
        while (!spare_.empty()) {
            Chunk& stays = *spare_.back();
            spare_.pop_back();
            engine_.host_.give(stays.copy);
            stays.hashed = false;
            if (engine_.host_.take(chunk.bytes, chunk.copy, why)) return true;
        }
        return false;
    }
    void list_spare() {
        const std::set<const Chunk*> leaving(leaving_.begin(), leaving_.end());
        for (auto& [address, chunk] : engine_.space_->chunks()) {
            const bool stays = chunk.state == State::resident && !leaving.contains(&chunk);
            if (stays && chunk.copy) spare_.push_back(&chunk);
        }
        spare_is_known_ = true;
    }
    void drop(Chunk& chunk) {
        Failure failure;
        if (!engine_.leave(chunk, State::swapped, credits_, failure)) return stop(failure);
        done_ += chunk.bytes;
        ++engine_.counters_.dropped;
        engine_.counters_.dropped_bytes += chunk.bytes;
    }
    void drop_zeros(Chunk& chunk) {
        Failure failure;
        if (!engine_.leave(chunk, State::unbacked, credits_, failure)) return stop(failure);
        done_ += chunk.bytes;
        ++engine_.counters_.zeros;
        engine_.counters_.zero_bytes += chunk.bytes;
    }
    // The oldest copy ends, and its chunk leaves the card.
    void land() {
        const Copying landing = copying_.front();
        copying_.pop_front();
        Chunk& chunk = *landing.chunk;
        Failure failure;
        if (!engine_.mover_->wait_out(failure)) return stop(failure);
        ++engine_.counters_.copies_out;
        engine_.traffic_out_.fetch_add(chunk.bytes, std::memory_order_relaxed);
        chunk.hashed = landing.hash.has_value();
        if (landing.hash) chunk.hash = *landing.hash;
        if (!engine_.leave(chunk, State::swapped, credits_, failure)) return stop(failure);
        done_ += chunk.bytes;
    }
    // The first failure is told. What is being copied lands all the same.
    void stop(const Failure& failure) {
        if (going_well_) failure_ = failure;
        going_well_ = false;
    }

    Engine& engine_;
    const std::vector<Chunk*> leaving_;
    Credits& credits_;
    std::vector<Hash> hashes_;  // of the batch; empty: not known
    std::deque<Copying> copying_;
    std::vector<Chunk*> spare_;  // chunks that stay and have copies
    bool spare_is_known_ = false;
    std::uint64_t done_ = 0;  // bytes
    bool going_well_ = true;
    Failure failure_;
};

bool Engine::swap_out(std::uint64_t bytes, Credits& credits, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    try {
        if (!finish_arriving(why)) return false;
        end_mappings();
        const std::uint64_t cleaned = clean(false) + clear_leftovers();
        if (cleaned > 0) credits.give(cleaned);
        if (cleaned >= bytes) return true;
        return Departure(*this, choose(bytes - cleaned), credits).run(why);
    } catch (const std::bad_alloc&) {
        Failure ignored;
        mover_->abandon(ignored);
        settle(ignored);
        why = no_host_memory();
        return false;
    }
}

std::vector<Chunk*> Engine::choose(std::uint64_t bytes) {
    std::vector<Chunk*> leaving;
    std::uint64_t sum = 0;
    for (auto& [address, chunk] : space_->chunks()) {
        if (sum >= bytes) break;
        if (chunk.state != State::resident || chunk.pinned) continue;
        leaving.push_back(&chunk);
        sum += chunk.bytes;
    }
    return leaving;
}

bool Engine::leave(Chunk& chunk, State to, Credits& credits, Failure& why) {
    const std::uint64_t before = card_.used();
    const bool has_left = card_.unback(chunk, why);
    if (!has_left && chunk.is_whole()) return false;
    set_state(chunk, to);
    if (to == State::unbacked) {
        chunk.zero = true;
        chunk.hashed = false;
        host_.give(chunk.copy);
    }
    if (before > card_.used()) credits.give(before - card_.used());
    return has_left;
}

}  // namespace vramkit::swap
