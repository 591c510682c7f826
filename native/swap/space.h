// Allocations of one program at addresses that never change, and the chunks behind them. Pure
// bookkeeping inside one range of addresses: no driver calls.
//
// Large allocations have chunks of their own: of the largest size, and one for the rest. Equal
// sizes fill the slabs of host memory without gaps. Small ones are cut from shared chunks by best
// fit. An allocation is large if whole pages of 2 MiB waste at most one eighth of it: all of 16 MiB
// and more are. Shared chunks grow with what they hold together, from one page to the largest
// chunk, so that at most half of it is waiting for the first use.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/range_set.h"
#include "swap/chunk.h"

namespace vramkit::swap {

inline constexpr std::uint64_t kAlignment = 512;  // of addresses, as cuMemAlloc gives

// What the program asked for.
struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
};

class Space {
  public:
    // The range, and the size of the largest chunk, are whole pages.
    Space(std::uint64_t base, std::uint64_t bytes, std::uint64_t chunk_bytes)
        : chunk_bytes_(chunk_bytes) {
        holes_.insert(base, bytes);
    }

    // 0: no hole in the addresses is large enough. `made` gets the new chunks, which are unbacked.
    std::uint64_t allocate(std::uint64_t bytes, std::vector<Chunk*>& made);
    // The block that begins at this address is no more. Chunks without blocks stay until remove().
    bool free(std::uint64_t address);
    // A chunk without blocks, backed by nothing: its addresses are free again.
    void remove(Chunk& chunk);

    // The block around an address.
    std::optional<Block> find(std::uint64_t address) const;
    // Chunks that have bytes of this range, by address: visit(Chunk&).
    template <typename Visit>
    void each_chunk_in(std::uint64_t address, std::uint64_t bytes, Visit visit) {
        if (bytes == 0) return;
        auto next = chunks_.upper_bound(address);
        if (next != chunks_.begin()) {
            Chunk& before = std::prev(next)->second;
            if (address - before.address < before.bytes) visit(before);
        }
        for (; next != chunks_.end() && next->first - address < bytes; ++next) visit(next->second);
    }
    // The chunk around an address, which must be in one.
    Chunk& chunk_around(std::uint64_t address);
    const Chunk& chunk_around(std::uint64_t address) const;
    // Chunks without blocks.
    std::vector<Chunk*> unused() const { return {unused_.begin(), unused_.end()}; }
    std::map<std::uint64_t, Chunk>& chunks() { return chunks_; }
    const std::map<std::uint64_t, Chunk>& chunks() const { return chunks_; }
    std::uint64_t allocated() const { return allocated_; }  // bytes, as asked for
    std::uint64_t chunk_bytes() const { return all_; }      // bytes of all chunks
    std::size_t blocks() const { return blocks_.size(); }
    // What is wrong, for tests; empty: nothing.
    std::string broken_invariant() const;

  private:
    std::uint64_t allocate_small(std::uint64_t bytes, std::vector<Chunk*>& made);
    std::uint64_t allocate_large(std::uint64_t bytes, std::vector<Chunk*>& made);
    Chunk& add_chunk(std::uint64_t address, std::uint64_t bytes);

    const std::uint64_t chunk_bytes_;
    RangeSet holes_;
    std::map<std::uint64_t, Chunk> chunks_;          // by address
    std::map<std::uint64_t, Chunk*> shared_chunks_;  // by address
    std::set<Chunk*> unused_;
    std::map<std::uint64_t, std::uint64_t> blocks_;  // address, bytes
    std::uint64_t allocated_ = 0;
    std::uint64_t all_ = 0, shared_ = 0;  // bytes of chunks, of shared ones
};

}  // namespace vramkit::swap
