// Announced blocks in an ordered map, each with the one around it.
#include "sim/checker/blocks.h"

#include <algorithm>
#include <iterator>

namespace vramkit::sim {

void Blocks::add_region(std::uint64_t begin, std::uint64_t bytes, const Mark& announced) {
    forget(begin, bytes);
    regions_.emplace(begin, Region{begin + bytes, announced});
}

// A block that contains the address contains the one that begins last before it, or is that one.
const Blocks::Entry* Blocks::entry_around(std::uint64_t address) const {
    auto at = blocks_.upper_bound(Key{address, ~std::uint64_t{0}});
    if (at == blocks_.begin()) return nullptr;
    const Entry* entry = &std::prev(at)->second;
    while (entry->block.end <= address) {
        if (!entry->outer) return nullptr;
        entry = &blocks_.at(*entry->outer);
    }
    return entry;
}

const Block* Blocks::around(std::uint64_t address) const {
    const Entry* entry = entry_around(address);
    return entry != nullptr ? &entry->block : nullptr;
}

// What lay inside it lies inside the next one out.
Blocks::Entries::iterator Blocks::erase(Entries::iterator entry) {
    const Key gone = entry->first;
    const Entry was = entry->second;
    const auto next = blocks_.erase(entry);
    for (auto inner = next; inner != blocks_.end() && inner->first.first < was.block.end; ++inner) {
        if (inner->second.outer == gone) inner->second.outer = was.outer;
    }
    return next;
}

void Blocks::add(std::uint64_t begin, std::uint64_t bytes, bool of_graph, const Mark& allocated) {
    const std::uint64_t end = begin + bytes;
    // Blocks that begin before it and end inside it.
    for (const Block* older = around(begin); older != nullptr && older->end < end;
         older = around(begin)) {
        erase(blocks_.find(key(older->begin, older->end)));
    }
    // Those that begin inside it. One that begins with it and ends behind it is around it.
    for (auto at = blocks_.lower_bound(key(begin, end));
         at != blocks_.end() && at->first.first < end;) {
        at = erase(at);
    }
    const Entry* outer = entry_around(begin);
    std::optional<Key> around_it;
    if (outer != nullptr) around_it = key(outer->block.begin, outer->block.end);
    blocks_.emplace(key(begin, end),
                    Entry{Block{begin, end, next_id_++, of_graph, allocated}, around_it});
}

std::optional<Block> Blocks::remove(std::uint64_t begin) {
    auto at = blocks_.upper_bound(Key{begin, ~std::uint64_t{0}});
    if (at == blocks_.begin()) return std::nullopt;
    --at;
    if (at->first.first != begin) return std::nullopt;
    const Block block = at->second.block;
    erase(at);
    return block;
}

void Blocks::forget_blocks(std::uint64_t begin, std::uint64_t bytes) {
    for (const Block* across = around(begin); across != nullptr; across = around(begin)) {
        erase(blocks_.find(key(across->begin, across->end)));
    }
    for (auto at = blocks_.lower_bound(Key{begin, 0});
         at != blocks_.end() && at->first.first < begin + bytes;) {
        at = erase(at);
    }
}

void Blocks::forget(std::uint64_t begin, std::uint64_t bytes) {
    forget_blocks(begin, bytes);
    auto at = regions_.upper_bound(begin);
    if (at != regions_.begin() && std::prev(at)->second.end > begin) --at;
    while (at != regions_.end() && at->first < begin + bytes) at = regions_.erase(at);
}

std::optional<Mark> Blocks::nearest(std::uint64_t address) const {
    const auto after = regions_.upper_bound(address);
    if (after == regions_.begin() || std::prev(after)->second.end <= address) return std::nullopt;
    const auto& [begin, region] = *std::prev(after);
    const auto behind = blocks_.upper_bound(Key{address, ~std::uint64_t{0}});
    if (behind != blocks_.begin() && std::prev(behind)->first.first >= begin) {
        return std::prev(behind)->second.block.allocated;
    }
    return region.announced;
}

}  // namespace vramkit::sim
