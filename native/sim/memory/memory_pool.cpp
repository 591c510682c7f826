// Best fit over the holes of a pool's chunks, and what goes back to the card when.
#include "sim/memory/memory_pool.h"

#include <algorithm>
#include <utility>

#include "sim/machine/machine.h"

namespace vramkit::sim {
namespace {

constexpr std::uint64_t kBlockAlignment = 512;
// A pool grows by multiples of this where the card has that much, as the driver does.
constexpr std::uint64_t kChunkStep = std::uint64_t{32} << 20;

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

MemoryPool::Grant MemoryPool::allocate(std::uint64_t bytes, Context* context, std::uint64_t stream,
                                       const Site& site, const OrderedAfter& ordered_after) {
    Grant grant;
    const std::uint64_t footprint = round_up(bytes, kBlockAlignment);
    const auto without_waiting = [&](const Hole& hole) {
        if (hole.reached == nullptr || hole.stream == stream) return true;
        if (hole.reached->pending == nullptr) return opportunistic;
        return follow_events && ordered_after(hole.reached->pending);
    };
    auto [chunk, address] = best_fit(footprint, without_waiting);
    if (chunk == nullptr) {
        chunk = grow(footprint, grant);
        if (chunk != nullptr) address = chunk->holes.begin()->first;
    }
    if (chunk == nullptr) {
        take_back();
        std::tie(chunk, address) = best_fit(footprint, without_waiting);
    }
    if (chunk == nullptr && internal_dependencies) {
        std::tie(chunk, address) = best_fit(footprint, [](const Hole&) { return true; });
    }
    if (chunk == nullptr) return grant;
    cut(*chunk, address, footprint, grant);
    // What the stream is ordered after anyway needs no wait of its own.
    std::erase_if(grant.awaited, ordered_after);
    ++chunk->live;
    const std::uint64_t begin = std::prev(chunks_.upper_bound(address))->first;
    blocks_.emplace(
        address, PoolBlock{bytes, footprint, begin, context, machine_.pools.next_block_id(), site});
    used += bytes;
    used_high = std::max(used_high, used);
    grant.address = address;
    return grant;
}

std::pair<MemoryPool::Chunk*, std::uint64_t> MemoryPool::best_fit(std::uint64_t bytes,
                                                                  const Usable& usable) {
    Chunk* best = nullptr;
    std::uint64_t best_address = 0, best_bytes = 0;
    for (auto& [begin, chunk] : chunks_) {
        std::uint64_t run = 0, run_end = 0;
        const auto consider = [&] {
            const std::uint64_t length = run_end - run;
            if (length >= bytes && (best == nullptr || length < best_bytes)) {
                best = &chunk;
                best_address = run;
                best_bytes = length;
            }
        };
        for (const auto& [at, hole] : chunk.holes) {
            if (!usable(hole)) continue;
            if (at != run_end) {
                consider();
                run = at;
            }
            run_end = hole.end;
        }
        consider();
    }
    return {best, best_address};
}

void MemoryPool::cut(Chunk& chunk, std::uint64_t address, std::uint64_t bytes, Grant& grant) {
    const std::uint64_t end = address + bytes;
    for (auto at = chunk.holes.lower_bound(address); at != chunk.holes.end() && at->first < end;) {
        const Hole hole = at->second;
        at = chunk.holes.erase(at);
        if (hole.end > end) at = chunk.holes.emplace(end, hole).first;
        if (hole.reached != nullptr && hole.reached->pending != nullptr) {
            grant.awaited.push_back(hole.reached->pending);
        }
    }
}

MemoryPool::Chunk* MemoryPool::grow(std::uint64_t bytes, Grant& grant) {
    Space& space = machine_.space();
    const int device = properties.location.id;
    const std::uint64_t least = round_up(bytes, space.granularity());
    for (const int attempt : {1, 2, 3}) {
        const std::uint64_t wanted = attempt == 1 ? round_up(bytes, kChunkStep) : least;
        if (properties.maxSize != 0 && wanted > properties.maxSize - reserved) continue;
        if (attempt == 3) machine_.pools.trim_all(device);
        const std::uint64_t address = space.back(device, wanted);
        if (address == 0) continue;
        reserved += wanted;
        reserved_high = std::max(reserved_high, reserved);
        grant.grown = wanted;
        Chunk& chunk = chunks_[address];
        chunk.bytes = wanted;
        chunk.holes.emplace(address, Hole{address + wanted, 0, nullptr});
        return &chunk;
    }
    return nullptr;
}

void MemoryPool::free(std::uint64_t address, std::uint64_t stream,
                      std::shared_ptr<Milestone> reached) {
    open_hole(address, blocks_.extract(address).mapped(), stream, std::move(reached));
}

void MemoryPool::free_by_host(std::uint64_t address) {
    freed_by_host_.insert(blocks_.extract(address));
}

void MemoryPool::open_hole(std::uint64_t address, const PoolBlock& block, std::uint64_t stream,
                           std::shared_ptr<Milestone> reached) {
    used -= block.bytes;
    Chunk& chunk = chunks_.at(block.chunk);
    --chunk.live;
    chunk.holes.emplace(address, Hole{address + block.footprint, stream, std::move(reached)});
    join_holes(chunk.holes);
}

void MemoryPool::free_blocks_of(const Context* context) {
    std::vector<std::uint64_t> found;
    for (const auto& [address, block] : blocks_) {
        if (block.context == context) found.push_back(address);
    }
    for (const std::uint64_t address : found) {
        const PoolBlock& block = blocks_.at(address);
        machine_.pool_block_freed_by_host(address, block.bytes, block.id, Site{});
        free(address, 0, nullptr);
    }
}

// Whether two holes are open to the same streams, now and later.
bool MemoryPool::alike(const Hole& a, const Hole& b) {
    if (a.reached == nullptr || b.reached == nullptr) return a.reached == b.reached;
    return a.stream == b.stream && a.reached->pending == nullptr && b.reached->pending == nullptr;
}

void MemoryPool::join_holes(Holes& holes) {
    for (auto at = holes.begin(); at != holes.end();) {
        const auto next = std::next(at);
        if (next == holes.end()) break;
        if (at->second.end == next->first && alike(at->second, next->second)) {
            at->second.end = next->second.end;
            holes.erase(next);
        } else {
            at = next;
        }
    }
}

void MemoryPool::take_back() {
    for (const auto& [address, block] : freed_by_host_) open_hole(address, block, 0, nullptr);
    freed_by_host_.clear();
}

void MemoryPool::settle() {
    take_back();
    for (auto& [begin, chunk] : chunks_) {
        for (auto& [at, hole] : chunk.holes) {
            if (hole.reached != nullptr && hole.reached->pending == nullptr) hole.reached.reset();
        }
        join_holes(chunk.holes);
    }
}

std::vector<std::uint64_t> MemoryPool::trim(std::uint64_t keep) {
    take_back();
    std::vector<std::uint64_t> dropped;
    for (auto at = chunks_.begin(); at != chunks_.end();) {
        const auto& [begin, chunk] = *at;
        const bool unused =
            chunk.live == 0 && std::all_of(chunk.holes.begin(), chunk.holes.end(), [](auto& entry) {
                const Hole& hole = entry.second;
                return hole.reached == nullptr || hole.reached->pending == nullptr;
            });
        if (!unused || reserved - chunk.bytes < keep) {
            ++at;
            continue;
        }
        dropped.push_back(chunk.bytes);
        reserved -= chunk.bytes;
        machine_.forget_range(begin, chunk.bytes);
        machine_.space().unback(begin);
        at = chunks_.erase(at);
    }
    return dropped;
}

std::pair<std::uint64_t, const PoolBlock*> MemoryPool::block_around(std::uint64_t address) const {
    const auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return {0, nullptr};
    const auto& [begin, block] = *std::prev(after);
    if (address - begin >= block.bytes) return {0, nullptr};
    return {begin, &block};
}

bool MemoryPool::idle() const {
    if (!blocks_.empty()) return false;
    for (const auto& [begin, chunk] : chunks_) {
        for (const auto& [at, hole] : chunk.holes) {
            if (hole.reached != nullptr && hole.reached->pending != nullptr) return false;
        }
    }
    return true;
}

}  // namespace vramkit::sim
