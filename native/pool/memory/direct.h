// Large blocks straight from the driver, as seed 002 has them: cuMemAlloc and cuMemFree, which
// waits for all work of the card. What a graph may use goes back when the graph is gone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "pool/streams/graph_life.h"

namespace vramkit::pool {

struct DirectBlock {
    std::uint64_t bytes = 0;
    std::uint32_t stream = 0;
    bool freed = false;  // by the user; of a graph still
    std::vector<std::shared_ptr<GraphLife>> graphs = {};

    bool is_of_graph() const {
        return std::any_of(graphs.begin(), graphs.end(),
                           [](const auto& graph) { return !graph->over(); });
    }
};

// The list of them, with the pool's lock; the driver is called without it.
class Direct {
  public:
    using Blocks = std::unordered_map<std::uint64_t, DirectBlock>;
    using Taken = Blocks::node_type;

    void add(std::uint64_t address, DirectBlock block) {
        bytes_ += block.bytes;
        blocks_.emplace(address, std::move(block));
    }
    // One that is in use.
    DirectBlock* find(std::uint64_t address) {
        const auto found = blocks_.find(address);
        return found == blocks_.end() || found->second.freed ? nullptr : &found->second;
    }
    Taken take(std::uint64_t address) {
        Taken taken = blocks_.extract(address);
        bytes_ -= taken.mapped().bytes;
        return taken;
    }
    // One that was freed, and whose graphs are gone; or none.
    Taken take_ended() {
        for (const auto& [address, block] : blocks_) {
            if (block.freed && !block.is_of_graph()) return take(address);
        }
        return {};
    }
    void put_back(Taken taken) {
        bytes_ += taken.mapped().bytes;
        blocks_.insert(std::move(taken));
    }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t freed_bytes() const {
        std::uint64_t bytes = 0;
        for (const auto& [address, block] : blocks_) bytes += block.freed ? block.bytes : 0;
        return bytes;
    }
    const Blocks& all() const { return blocks_; }
    void clear() {
        blocks_.clear();
        bytes_ = 0;
    }

  private:
    Blocks blocks_;
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit::pool
