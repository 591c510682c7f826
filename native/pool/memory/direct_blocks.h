// Blocks above 1 MiB straight from the driver (large="direct"): cuMemAlloc and cuMemFree, which
// waits for all work of the card. A block that a graph may use is freed when the graph is gone.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/brief_mutex.h"
#include "pool/device_context.h"
#include "pool/memory/device_memory.h"
#include "pool/streams/graph_life.h"

namespace vramkit::pool {

// The pool's lock guards the list; cuMemFree is called without it.
class DirectBlocks {
  public:
    DirectBlocks(const DeviceContext& card, DeviceMemory& memory) : card_(card), memory_(memory) {}
    DirectBlocks(const DirectBlocks&) = delete;
    DirectBlocks& operator=(const DirectBlocks&) = delete;

    // A block of a stream; 0 and the reason on failure.
    std::uint64_t allocate(std::uint64_t bytes, std::uint32_t stream, Failure& why);
    // The requested size of a block in use; nullopt: there is none at this address.
    std::optional<std::uint64_t> bytes_at(std::uint64_t address) const;
    std::uint32_t stream_of(std::uint64_t address) const { return blocks_.at(address).stream; }
    // A graph may use the block at every launch: cuMemFree waits for all streams, but not for later
    // launches.
    void note_graph(std::uint64_t address, std::shared_ptr<GraphLife> graph);
    // Frees the block; if a graph may use it, only notes that for free_ended(). Releases the lock
    // for the driver call. False and the reason: the driver failed, and the block is still in use.
    bool free(std::uint64_t address, std::unique_lock<BriefMutex>& pool, Failure& why);
    // Frees the noted blocks whose graphs are gone. Waits for the card, without the lock. Returns
    // the bytes.
    std::uint64_t free_ended(std::unique_lock<BriefMutex>& pool);

    std::size_t count() const { return blocks_.size(); }
    std::uint64_t bytes_of_graphs() const;  // freed by the user, but graphs may use them
    template <class Visit>
    void each_number(Visit visit) const {
        for (const auto& [address, block] : blocks_) visit(block.stream);
    }
    // visit(stream, bytes) for each that is with the user.
    template <class Visit>
    void each_in_use(Visit visit) const {
        for (const auto& [address, block] : blocks_) {
            if (!block.freed) visit(block.stream, block.bytes);
        }
    }
    // At the end of the pool: frees what is left.
    void give_everything_back();
    void forget_driver() { blocks_.clear(); }

  private:
    struct Block {
        std::uint64_t bytes = 0;
        std::uint32_t stream = 0;
        bool freed = false;  // by the user, but a graph may use it
        std::vector<std::shared_ptr<GraphLife>> graphs = {};

        bool is_of_graph() const;
    };
    using Blocks = std::unordered_map<std::uint64_t, Block>;

    Blocks::node_type take(std::uint64_t address);
    void put_back(Blocks::node_type taken);
    bool give_back(Blocks::node_type& taken, std::unique_lock<BriefMutex>& pool, Failure& why);

    const DeviceContext& card_;
    DeviceMemory& memory_;
    Blocks blocks_;
};

}  // namespace vramkit::pool
