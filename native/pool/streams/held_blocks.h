// Freed blocks that somebody may still use: another stream than the one they were freed on, or a
// graph. They are held until that is over. Nobody waits for it, neither host nor stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pool/device_context.h"
#include "pool/streams/graph_life.h"
#include "pool/streams/streams.h"
#include "pool/types.h"

namespace vramkit::pool {

// A use that is awaited: a point of a stream, or the life of a graph. Neither: of a stream that
// nobody can ask, which is over when the whole card was waited for.
struct Use {
    std::shared_ptr<StreamCache> stream_cache;
    Fences::Number point = 0;
    std::shared_ptr<GraphLife> graph;
    std::uint64_t since = 0;  // of neither: counts the waits for the card that had begun

    bool awaits_card() const { return stream_cache == nullptr && graph == nullptr; }
    bool is_over() const {
        if (graph != nullptr) return graph->over();
        if (stream_cache == nullptr) return false;
        const std::lock_guard guard(stream_cache->lock);
        return stream_cache->is_past(point);
    }
};

// Where a freed block goes, and who may still use it.
struct FreePlan {
    std::uint32_t home = 0;  // the stream that has the block then
    std::vector<Use> uses;   // awaited before

    bool has_graph() const {
        return std::any_of(uses.begin(), uses.end(),
                           [](const Use& use) { return use.graph != nullptr; });
    }
};

// With the pool's lock, in its context.
class HeldBlocks {
  public:
    HeldBlocks(const DeviceContext& card, DeviceMemory& memory, Streams& streams)
        : card_(card), memory_(memory), streams_(streams) {}
    HeldBlocks(const HeldBlocks&) = delete;
    HeldBlocks& operator=(const HeldBlocks&) = delete;

    // The block is used on this stream too.
    void note(std::uint64_t address, std::uint32_t stream) {
        std::vector<std::uint32_t>& streams = noted_[address];
        if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
            streams.push_back(stream);
        }
    }
    void forget(std::uint64_t address) { noted_.erase(address); }
    // For a block that is freed on a stream, or without one on that of its allocation. Nullopt and
    // the reason: the stream is none of the pool's.
    std::optional<FreePlan> plan(BlockRef block, const std::optional<StreamRef>& stream,
                                 Failure& why);

    // So that the next hold() cannot fail.
    void make_room() {
        if (held_.size() == held_.capacity()) held_.reserve(2 * held_.size() + 8);
    }
    // It becomes free for the stream `plan.home` when all its uses are over.
    void hold(BlockRef block, FreePlan plan) {
        held_.push_back({block, plan.home, std::move(plan.uses)});
        bytes_ += block.bytes();
    }
    // What is held no longer goes to the cache of its stream. True: any did. Where that fails
    // without host memory nothing is lost, and the next call goes on.
    bool release();

    // Of those that only a wait for the whole card helps.
    std::uint64_t bytes_awaiting_card() const;
    // A wait for the card begins; when it is over, what was held before is done. What graphs may do
    // later is not.
    std::uint64_t begin_card_wait() { return card_waits_++; }
    void end_card_wait(std::uint64_t wait);

    std::uint64_t bytes() const { return bytes_; }
    // visit(block) and visit(number): of blocks that are held; numbers of streams that are known.
    template <class Visit>
    void each(Visit visit) const {
        for (const Held& held : held_) visit(held.block);
    }
    template <class Visit>
    void each_number(Visit visit) const {
        for (const Held& held : held_) visit(held.number);
        for (const auto& [address, streams] : noted_) {
            for (const std::uint32_t number : streams) visit(number);
        }
    }

  private:
    struct Held {
        BlockRef block;
        std::uint32_t number = 0;
        std::vector<Use> uses;

        // Those that are over; one whose question fails without host memory is not lost.
        void drop_uses();
    };

    std::optional<StreamRef> stream_of_capture(std::uint32_t number) const;
    void add_use(std::vector<Use>& uses, std::uint32_t number, bool given) const;
    bool order_in_capture(const StreamRef& use, const StreamRef& stream) const;
    void give_to_stream(BlockRef block, std::uint32_t number);

    const DeviceContext& card_;
    DeviceMemory& memory_;
    Streams& streams_;
    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> noted_;  // by address
    std::vector<Held> held_;
    std::uint64_t bytes_ = 0;
    std::uint64_t card_waits_ = 0;
};

}  // namespace vramkit::pool
