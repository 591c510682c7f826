// Blocks that a sub-allocator has announced, by their addresses: where each one ends, and which
// memory belongs to nobody.
//
// Blocks lie apart or inside one another (a pool above a pool), never across. One that is announced
// where an older one lies in part, or as a whole, takes its place.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "sim/checker/report.h"

namespace vramkit::sim {

struct Block {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t id = 0;   // never used twice
    bool of_graph = false;  // allocated in a capture: its graph may use it again and again
    Mark allocated;
};

class Blocks {
  public:
    static constexpr std::uint64_t kFirstId = std::uint64_t{1} << 48;

    bool empty() const { return blocks_.empty() && regions_.empty(); }

    // All of the region is handed out in blocks: what lies in none is nobody's.
    void add_region(std::uint64_t begin, std::uint64_t bytes, const Mark& announced);
    void add(std::uint64_t begin, std::uint64_t bytes, bool of_graph, const Mark& allocated);
    // The block that begins there, the smallest of several; nothing where there is none.
    std::optional<Block> remove(std::uint64_t begin);
    // The memory is gone, its addresses are not.
    void forget_blocks(std::uint64_t begin, std::uint64_t bytes);
    // The addresses are gone too.
    void forget(std::uint64_t begin, std::uint64_t bytes);

    // The smallest block around an address, or null.
    const Block* around(std::uint64_t address) const;
    // For an address of a region that lies in no block: the block before it, else the region.
    // Nothing outside regions.
    std::optional<Mark> nearest(std::uint64_t address) const;

  private:
    // Outer blocks come before inner ones: by begin, then by the bytes from the end backwards.
    using Key = std::pair<std::uint64_t, std::uint64_t>;
    struct Entry {
        Block block;
        std::optional<Key> outer;  // the smallest block around it
    };
    struct Region {
        std::uint64_t end = 0;
        Mark announced;
    };
    using Entries = std::map<Key, Entry>;

    static Key key(std::uint64_t begin, std::uint64_t end) { return {begin, ~end}; }
    const Entry* entry_around(std::uint64_t address) const;
    Entries::iterator erase(Entries::iterator entry);

    Entries blocks_;
    std::map<std::uint64_t, Region> regions_;
    std::uint64_t next_id_ = kFirstId;
};

}  // namespace vramkit::sim
