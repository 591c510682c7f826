// Large blocks straight from the driver.
#include "pool/memory/direct_blocks.h"

#include <algorithm>

namespace vramkit::pool {

bool DirectBlocks::Block::is_of_graph() const {
    return std::any_of(graphs.begin(), graphs.end(),
                       [](const auto& graph) { return !graph->over(); });
}

std::uint64_t DirectBlocks::allocate(std::uint64_t bytes, std::uint32_t stream, Failure& why) {
    CUdeviceptr address = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes <= memory_.may_grow()) result = card_.call.cuMemAlloc_v2(&address, bytes);
    if (failed(result, "cuMemAlloc_v2", why)) return 0;
    blocks_.emplace(address, Block{bytes, stream});
    memory_.add_direct(bytes);
    return address;
}

std::optional<std::uint64_t> DirectBlocks::bytes_at(std::uint64_t address) const {
    const auto found = blocks_.find(address);
    if (found == blocks_.end() || found->second.freed) return {};
    return found->second.bytes;
}

void DirectBlocks::note_graph(std::uint64_t address, std::shared_ptr<GraphLife> graph) {
    blocks_.at(address).graphs.push_back(std::move(graph));
}

bool DirectBlocks::free(std::uint64_t address, std::unique_lock<BriefMutex>& pool, Failure& why) {
    Block& block = blocks_.at(address);
    block.freed = block.is_of_graph();
    if (block.freed) return true;
    Blocks::node_type taken = take(address);
    return give_back(taken, pool, why);
}

std::uint64_t DirectBlocks::free_ended(std::unique_lock<BriefMutex>& pool) {
    std::uint64_t bytes = 0;
    for (;;) {
        const auto ended = std::find_if(blocks_.begin(), blocks_.end(), [](const auto& each) {
            return each.second.freed && !each.second.is_of_graph();
        });
        if (ended == blocks_.end()) return bytes;
        Blocks::node_type taken = take(ended->first);
        const std::uint64_t size = taken.mapped().bytes;
        Failure why;
        if (!give_back(taken, pool, why)) return bytes;
        bytes += size;
    }
}

// cuMemFree waits for all work of the card, so the lock is released for it. If it fails, the block
// is as before.
bool DirectBlocks::give_back(Blocks::node_type& taken, std::unique_lock<BriefMutex>& pool,
                             Failure& why) {
    const SlowPathScope scope = card_.enter();
    pool.unlock();
    const bool gone = !failed(card_.call.cuMemFree_v2(taken.key()), "cuMemFree_v2", why);
    pool.lock();
    if (!gone) put_back(std::move(taken));
    return gone;
}

DirectBlocks::Blocks::node_type DirectBlocks::take(std::uint64_t address) {
    Blocks::node_type taken = blocks_.extract(address);
    memory_.remove_direct(taken.mapped().bytes);
    return taken;
}

void DirectBlocks::put_back(Blocks::node_type taken) {
    if (card_.forgotten) return;
    memory_.add_direct(taken.mapped().bytes);
    blocks_.insert(std::move(taken));
}

std::uint64_t DirectBlocks::bytes_of_graphs() const {
    std::uint64_t bytes = 0;
    for (const auto& [address, block] : blocks_) bytes += block.freed ? block.bytes : 0;
    return bytes;
}

void DirectBlocks::give_everything_back() {
    for (const auto& [address, block] : blocks_) card_.call.cuMemFree_v2(address);
    blocks_.clear();
}

}  // namespace vramkit::pool
