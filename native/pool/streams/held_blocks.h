// Freed blocks that a graph, or a stream other than the one they were freed on, may still use. They
// are held until that use is over. Neither the host nor a stream waits for it.
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

// A use that must end first: up to a point of a stream, or as long as a graph exists. Neither: work
// of a stream that cannot be queried, which is over after a device sync.
struct Use {
    std::shared_ptr<StreamCache> stream_cache;
    Fences::Number point = 0;
    std::shared_ptr<GraphLife> graph;
    std::uint64_t since = 0;  // of neither: how many device syncs had begun

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
    std::uint32_t home = 0;  // the stream that gets the block
    std::vector<Use> uses;   // that must end first

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
    // For a block that is freed on a stream; none given: on that of its allocation. Nullopt and the
    // reason: the pool cannot use the stream.
    std::optional<FreePlan> plan(BlockRef block, const std::optional<StreamRef>& stream,
                                 Failure& why);

    // So that the next hold() cannot fail.
    void make_room() {
        if (held_.size() == held_.capacity()) held_.reserve(2 * held_.size() + 8);
    }
    // Keeps the block until all its uses are over; then `plan.home` gets it.
    void hold(BlockRef block, FreePlan plan) {
        held_.push_back({block, plan.home, std::move(plan.uses)});
        bytes_ += block.bytes();
    }
    // Moves blocks whose uses are over to their stream cache. True: at least one. If host memory
    // runs out, nothing is lost, and the next call continues.
    bool release();

    // Bytes of blocks that only a device sync releases.
    std::uint64_t bytes_awaiting_card() const;
    // A device sync begins. When it ends, the uses noted before it are over, except those of
    // graphs, which may be launched again.
    std::uint64_t begin_card_wait() { return card_waits_++; }
    void end_card_wait(std::uint64_t wait);

    std::uint64_t bytes() const { return bytes_; }
    // visit(block) for all held blocks; visit(number) for all streams referred to here.
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

        // Removes the uses that are over. If a query fails without host memory, its use stays.
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
