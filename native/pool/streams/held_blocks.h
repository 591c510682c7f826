// Freed blocks that somebody may still use: another stream than the one they were freed on, or a
// graph. They are held until that is over. Nobody waits for it, neither host nor stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pool/streams/graph_life.h"
#include "pool/streams/stream_cache.h"
#include "pool/types.h"

namespace vramkit::pool {

// A use that is awaited: a point of a stream, or the life of a graph. Neither: of a stream that
// nobody can ask, which is over when the whole card was waited for.
struct Use {
    std::shared_ptr<StreamCache> stream_cache;
    Fences::Number point = 0;
    std::shared_ptr<GraphLife> graph;

    bool is_over(bool wait) const {
        if (graph != nullptr) return graph->over();
        if (stream_cache == nullptr) return false;
        std::unique_lock guard(stream_cache->lock);
        if (wait) stream_cache->wait(guard);
        return stream_cache->is_past(point);
    }
};

// With the pool's lock, in its context.
class HeldBlocks {
  public:
    // The block is used on this stream too.
    void note(std::uint64_t address, std::uint32_t stream) {
        std::vector<std::uint32_t>& streams = noted_[address];
        if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
            streams.push_back(stream);
        }
    }
    // The streams that were noted, until forget().
    std::span<const std::uint32_t> noted(std::uint64_t address) const {
        const auto found = noted_.find(address);
        if (found == noted_.end()) return {};
        return found->second;
    }
    void forget(std::uint64_t address) { noted_.erase(address); }
    // So that the next hold() cannot fail.
    void make_room() {
        if (held_.size() == held_.capacity()) held_.reserve(2 * held_.size() + 8);
    }
    // It becomes free for the stream of this number.
    void hold(BlockRef block, std::uint32_t number, std::vector<Use> uses) {
        held_.push_back({block, number, std::move(uses)});
        bytes_ += block.bytes();
    }
    // visit(block, number) for each that is held no longer, which gives it another state. Where
    // that fails without host memory, its state says whether it is held still.
    template <class Visit>
    void release(bool wait, Visit visit) {
        for (Held& held : held_) held.drop_uses(wait);
        std::partition(held_.begin(), held_.end(),
                       [](const Held& held) { return !held.uses.empty(); });
        while (!held_.empty() && held_.back().uses.empty()) {
            const BlockRef block = held_.back().block;
            const std::uint64_t bytes = block.bytes();
            const auto drop = [&] {
                held_.pop_back();
                bytes_ -= bytes;
            };
            try {
                visit(block, held_.back().number);
            } catch (...) {
                if (block.block().state() != State::held) drop();
                throw;
            }
            drop();
        }
    }
    // Of those that only a wait for the whole card helps.
    std::uint64_t bytes_awaiting_card() const {
        std::uint64_t bytes = 0;
        for (const Held& held : held_) {
            if (std::any_of(held.uses.begin(), held.uses.end(), awaits_card)) {
                bytes += held.block.bytes();
            }
        }
        return bytes;
    }
    // All work of the card up to now is done. What graphs may do later is not.
    void card_is_done() {
        for (Held& held : held_) std::erase_if(held.uses, awaits_card);
    }
    std::uint64_t bytes() const { return bytes_; }
    template <class Visit>
    void each(Visit visit) const {
        for (const Held& held : held_) visit(held.block);
    }

  private:
    struct Held {
        BlockRef block;
        std::uint32_t number = 0;
        std::vector<Use> uses;

        // Those that are over; one whose question fails without host memory is not lost.
        void drop_uses(bool wait) {
            for (std::size_t i = 0; i < uses.size();) {
                if (uses[i].is_over(wait)) {
                    uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(i));
                } else {
                    ++i;
                }
            }
        }
    };
    static bool awaits_card(const Use& use) {
        return use.stream_cache == nullptr && use.graph == nullptr;
    }

    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> noted_;  // by address
    std::vector<Held> held_;
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit::pool
