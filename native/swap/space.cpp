// Finds addresses for allocations, and keeps their chunks.
#include "swap/space.h"

#include <algorithm>
#include <iterator>

#include "base/sizes.h"

namespace vramkit::swap {
namespace {

constexpr std::uint64_t kWastedPart = 8;  // at most one eighth

bool is_large(std::uint64_t bytes) {
    return (round_up(bytes, kPage) - bytes) * kWastedPart <= bytes;
}

// What a block takes of a shared chunk.
std::uint64_t rounded(std::uint64_t bytes) { return round_up(bytes, kAlignment); }

}  // namespace

std::uint64_t Space::allocate(std::uint64_t bytes, std::vector<Chunk*>& made) {
    const std::uint64_t address =
        is_large(bytes) ? allocate_large(bytes, made) : allocate_small(bytes, made);
    if (address == 0) return 0;
    blocks_.emplace(address, bytes);
    allocated_ += bytes;
    return address;
}

std::uint64_t Space::allocate_large(std::uint64_t bytes, std::vector<Chunk*>& made) {
    const std::uint64_t begin = holes_.take_best(round_up(bytes, kPage));
    if (begin == 0) return 0;
    const std::uint64_t end = begin + round_up(bytes, kPage);
    for (std::uint64_t address = begin; address < end; address += chunk_bytes_) {
        made.push_back(&add_chunk(address, std::min(chunk_bytes_, end - address)));
        made.back()->blocks = 1;
    }
    return begin;
}

std::uint64_t Space::allocate_small(std::uint64_t bytes, std::vector<Chunk*>& made) {
    const std::uint64_t needed = rounded(bytes);
    // The lowest chunk that has room: those above it become empty.
    for (auto& [address, chunk] : shared_chunks_) {
        if (chunk->free.largest() < needed) continue;
        if (chunk->blocks++ == 0) unused_.erase(chunk);
        return chunk->free.take_best(needed);
    }
    const std::uint64_t grown =
        std::max(round_up(needed, kPage), std::min(round_up(shared_, kPage), chunk_bytes_));
    const std::uint64_t begin = holes_.take_best(grown);
    if (begin == 0) return 0;
    Chunk& chunk = add_chunk(begin, grown);
    chunk.shared = true;
    chunk.free.insert(begin, grown);
    chunk.blocks = 1;
    shared_chunks_.emplace(begin, &chunk);
    shared_ += grown;
    made.push_back(&chunk);
    return chunk.free.take_best(needed);
}

Chunk& Space::add_chunk(std::uint64_t address, std::uint64_t bytes) {
    Chunk& chunk = chunks_[address];
    chunk.address = address;
    chunk.bytes = bytes;
    all_ += bytes;
    return chunk;
}

Chunk& Space::chunk_around(std::uint64_t address) {
    return std::prev(chunks_.upper_bound(address))->second;
}

const Chunk& Space::chunk_around(std::uint64_t address) const {
    return std::prev(chunks_.upper_bound(address))->second;
}

bool Space::free(std::uint64_t address) {
    const auto block = blocks_.find(address);
    if (block == blocks_.end()) return false;
    const std::uint64_t bytes = block->second;
    if (Chunk& chunk = chunk_around(address); chunk.shared) {
        chunk.free.insert(address, rounded(bytes));
        if (--chunk.blocks == 0) unused_.insert(&chunk);
    } else {
        each_chunk_in(address, bytes, [this](Chunk& each) {
            each.blocks = 0;
            unused_.insert(&each);
        });
    }
    blocks_.erase(block);
    allocated_ -= bytes;
    return true;
}

void Space::remove(Chunk& chunk) {
    holes_.insert(chunk.address, chunk.bytes);
    all_ -= chunk.bytes;
    if (chunk.shared) {
        shared_ -= chunk.bytes;
        shared_chunks_.erase(chunk.address);
    }
    unused_.erase(&chunk);
    chunks_.erase(chunk.address);
}

std::optional<Block> Space::find(std::uint64_t address) const {
    const auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return {};
    const auto& [begin, bytes] = *std::prev(after);
    if (address - begin >= bytes) return {};
    return Block{begin, bytes};
}

std::string Space::broken_invariant() const {
    std::uint64_t end = 0, allocated = 0, all = 0, shared = 0, unused = 0;
    for (const auto& [address, chunk] : chunks_) {
        const std::string at = " at " + std::to_string(address);
        if (address < end || address % kPage != 0) return "chunks overlap" + at;
        end = address + chunk.bytes;
        all += chunk.bytes;
        if (chunk.shared) shared += chunk.bytes;
        unused += chunk.blocks == 0;
        const bool on_host =
            chunk.state == State::swapped || (chunk.state == State::arriving && !chunk.zero);
        if (chunk.is_on_card() && !chunk.is_whole()) return "a chunk is not mapped" + at;
        if (on_host && !chunk.copy) return "a swapped chunk has no copy" + at;
        if (chunk.state == State::unbacked && chunk.copy)
            return "an unbacked chunk has a copy" + at;
        if (chunk.zero && (chunk.state == State::resident || chunk.state == State::swapped)) {
            return "zeros that the program may have written" + at;
        }
        if (!chunk.of_handle && !chunk.aliases.empty()) return "an alias of no handle" + at;
        if (chunk.hashed && !chunk.copy) return "a hash without a copy" + at;
        std::uint64_t used = 0;
        std::uint32_t blocks = 0;
        for (auto block = blocks_.lower_bound(address);
             chunk.shared && block != blocks_.end() && block->first < end; ++block) {
            used += rounded(block->second);
            ++blocks;
        }
        if (chunk.shared && (blocks != chunk.blocks || used + chunk.free.bytes() != chunk.bytes)) {
            return "the blocks of a shared chunk are wrong" + at;
        }
    }
    for (const auto& [address, bytes] : blocks_) {
        allocated += bytes;
        if (address % kAlignment != 0) return "a block is not aligned";
    }
    if (allocated != allocated_) return "allocated bytes are counted wrong";
    if (shared != shared_ || all != all_) return "bytes of chunks are counted wrong";
    if (unused != unused_.size()) return "chunks without blocks are counted wrong";
    return "";
}

}  // namespace vramkit::swap
