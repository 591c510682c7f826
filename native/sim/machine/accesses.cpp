// What operations and the host do to memory, as the checker is told of it.
#include <algorithm>

#include "sim/machine/machine.h"

namespace vramkit::sim {
namespace {

Range range_of(const Piece& piece) {
    return Range{piece.physical, piece.physical + piece.bytes, piece.address - piece.physical};
}

Mark mark_of(const Stream& stream, Use use, const Site& site) {
    return Mark{.component = stream.actor.component, .stream = stream.id, .site = site, .use = use};
}

bool is_mapping(MemoryId id) { return (id & kMappingId) != 0; }

}  // namespace

bool Machine::touch(Stream& stream, std::uint64_t address, std::uint64_t bytes, Use use,
                    const Site& site, bool* idle) {
    if (!settings.checker || bytes == 0) return true;
    const std::uint64_t inside =
        blocks.empty() ? bytes : bytes_in_bounds(stream, address, bytes, use, site);
    if (stream.capture != nullptr) {
        if (idle != nullptr) *idle = false;
        stream.capture->touches.push_back({{address, inside, use}, memory_of(address, inside)});
        return true;
    }
    return judge(stream, Touch{address, inside, use}, site, idle);
}

bool Machine::judge(Stream& stream, const Touch& touch, const Site& site, bool* idle) {
    thread_local std::vector<Piece> pieces;
    pieces.clear();
    const bool mapped = space_->resolve(touch.address, touch.bytes, pieces);
    for (const Piece& piece : pieces) {
        const bool free = checker.use(stream.actor, range_of(piece), touch.use, site);
        if (idle != nullptr) *idle = *idle && free;
    }
    return mapped;
}

// An access that begins in an announced block ends there, and one that begins in none of them must
// not lie in memory that is handed out in blocks. Returns how much of it may be judged further: one
// mistake is one report.
std::uint64_t Machine::bytes_in_bounds(const Stream& stream, std::uint64_t address,
                                       std::uint64_t bytes, Use use, const Site& site) {
    const auto report = [&](const Mark& first, std::uint64_t begin, std::uint64_t outside) {
        checker.reports.add(ReportKind::out_of_bounds, first, mark_of(stream, use, site), begin,
                            outside);
    };
    if (const Block* block = blocks.around(address); block != nullptr) {
        const std::uint64_t inside = block->end - address;
        if (bytes <= inside) return bytes;
        report(block->allocated, block->end, bytes - inside);
        return inside;
    }
    const std::optional<Mark> nearest = blocks.nearest(address);
    std::vector<Piece> pieces;
    // A block that was freed is used after that, which the checker tells; what is not mapped gets
    // the driver's error.
    if (!nearest || !space_->resolve(address, 1, pieces) ||
        checker.is_freed(pieces.front().physical)) {
        return bytes;
    }
    report(*nearest, address, bytes);
    return 0;
}

void Machine::host_touch(std::uint64_t address, std::uint64_t bytes, bool write, const Site& site,
                         const Deferred* point) {
    if (!settings.checker || bytes == 0) return;
    each_piece(address, bytes, [&](const Range& range) {
        if (point != nullptr) {
            checker.deferred_use(*point, range, write ? Use::write : Use::read, site);
        } else {
            checker.host_use(range, write, site);
        }
    });
}

void Machine::copies_touch(const Stream& stream, std::span<const CopyRows> copies,
                           const Site& site) {
    struct Side {
        Range range;
        Use use = Use::read;
        std::size_t copy = 0;
    };
    std::vector<Side> sides;
    for (std::size_t i = 0; i < copies.size(); ++i) {
        const CopyRows& copy = copies[i];
        const auto add = [&](std::uint64_t address, const Strides& strides, Use use) {
            each_row(copy.box, strides, [&](std::uint64_t at, std::uint64_t bytes) {
                each_piece(address + at, bytes,
                           [&](const Range& range) { sides.push_back({range, use, i}); });
            });
        };
        add(copy.source, copy.from, Use::read);
        add(copy.destination, copy.to, Use::write);
    }
    std::stable_sort(sides.begin(), sides.end(), [](const Side& one, const Side& other) {
        return one.range.begin < other.range.begin;
    });
    // Of what began earlier, that which ends last meets everything that any of it meets.
    const Side* read = nullptr;
    const Side* written = nullptr;
    for (const Side& side : sides) {
        const auto meets = [&](const Side* earlier) {
            return earlier != nullptr && earlier->range.end > side.range.begin;
        };
        const auto report = [&](const Side& earlier) {
            const bool same = earlier.copy == side.copy;
            const Side& first = side.use == Use::read ? side : earlier;
            const Side& second = side.use == Use::read ? earlier : side;
            const std::uint64_t end = std::min(earlier.range.end, side.range.end);
            checker.reports.add(same ? ReportKind::overlapping_copy : ReportKind::race,
                                mark_of(stream, first.use, site), mark_of(stream, second.use, site),
                                side.range.begin + second.range.delta, end - side.range.begin);
        };
        const Side*& same_use = side.use == Use::read ? read : written;
        if (meets(side.use == Use::read ? written : read)) {
            report(side.use == Use::read ? *written : *read);
        } else if (side.use == Use::write && meets(written) && written->copy != side.copy) {
            report(*written);
        }
        if (same_use == nullptr || same_use->range.end < side.range.end) same_use = &side;
    }
}

template <class Visit>
void Machine::each_piece(std::uint64_t address, std::uint64_t bytes, Visit visit) {
    if (!settings.checker) return;
    std::vector<Piece> pieces;
    space_->resolve(address, bytes, pieces);
    for (const Piece& piece : pieces) visit(range_of(piece));
}

void Machine::block_told(Stream* stream, std::uint64_t address, std::uint64_t bytes, Told told,
                         const Site& site) {
    const bool captured = stream != nullptr && stream->capture != nullptr;
    // What a graph is given stays its own: it is used with every launch.
    if (captured && told != Told::allocated) return;
    const Use use = told == Told::allocated ? Use::alloc : Use::free;
    const Mark mark = stream != nullptr ? mark_of(*stream, use, site)
                                        : Mark{.site = site, .use = use, .host = true};
    if (told == Told::allocated) {
        blocks.add(address, bytes, captured, mark);
    } else if (const auto block = blocks.remove(address)) {
        memory_released(block->id, mark);
    }
    if (stream != nullptr && !captured) order_for_checker(*stream);
    each_piece(address, bytes, [&](const Range& range) {
        if (stream == nullptr || captured) {
            // In a capture it is used when the graph runs, and judged then.
            if (told == Told::allocated) checker.block_taken(range);
        } else if (told == Told::allocated) {
            checker.block_allocated(stream->actor, range, site);
        } else if (told == Told::freed) {
            checker.block_freed(stream->actor, range, site);
        } else {
            checker.block_held(stream->actor, range, site);
        }
    });
}

void Machine::region_told(std::uint64_t address, std::uint64_t bytes, const Site& site) {
    blocks.add_region(address, bytes, Mark{.site = site, .use = Use::alloc, .host = true});
}

void Machine::pool_block_allocated(Stream& stream, std::uint64_t address, std::uint64_t bytes,
                                   const Site& site) {
    each_piece(address, bytes,
               [&](const Range& range) { checker.block_allocated(stream.actor, range, site); });
}

void Machine::block_freed(Stream& stream, std::uint64_t address, std::uint64_t bytes, MemoryId id,
                          const Site& site) {
    memory_released(id, mark_of(stream, Use::free, site));
    each_piece(address, bytes,
               [&](const Range& range) { checker.pool_block_freed(stream.actor, range, site); });
}

void Machine::pool_block_freed_by_host(std::uint64_t address, std::uint64_t bytes, MemoryId id,
                                       const Site& site) {
    memory_released(id, Mark{.site = site, .use = Use::free, .host = true});
    each_piece(address, bytes,
               [&](const Range& range) { checker.pool_block_freed_by_host(range, site); });
}

void Machine::forget_range(std::uint64_t address, std::uint64_t bytes) {
    blocks.forget(address, bytes);
    each_piece(address, bytes, [&](const Range& range) { checker.forget(range); });
}

void Machine::release_range(std::uint64_t address, std::uint64_t bytes, MemoryId id,
                            const Site& site) {
    memory_released(id, Mark{.site = site, .use = Use::free, .host = true});
    std::erase_if(value_writes, [&](const auto& entry) { return entry.first - address < bytes; });
    // The bytes of a block of cuMemAlloc or of host memory go with it, as do its addresses; a
    // mapping's stay.
    const bool whole = !is_mapping(id);
    whole ? blocks.forget(address, bytes) : blocks.forget_blocks(address, bytes);
    each_piece(address, bytes, [&](const Range& range) {
        checker.released(range, whole, site);
        if (whole) checker.forget(range);
    });
}

std::vector<MemoryId> Machine::memory_of(std::uint64_t address, std::uint64_t bytes) {
    std::vector<MemoryId> found;
    const Block* block = blocks.around(address);
    if (block != nullptr && !block->of_graph) found.push_back(block->id);
    if (const auto plain = space_->allocation_around(address).second; plain != nullptr) {
        found.push_back(plain->id);
    } else if (const auto host = space_->host_around(address).second; host != nullptr) {
        found.push_back(host->id);
    } else if (const Pools::Found pooled = pools.block_around(address); pooled.pool != nullptr) {
        found.push_back(pooled.block->id);
    } else {
        for (std::uint64_t at = address; at < address + bytes;) {
            const auto [begin, mapping] = space_->mapping_around(at);
            if (mapping == nullptr) break;
            found.push_back(begin | kMappingId);
            at = begin + mapping->bytes;
        }
    }
    return found;
}

void Machine::memory_released(MemoryId id, const Mark& freed) {
    if (settings.checker) captures.memory_released(id, freed);
}

bool Machine::uses_released(const Graph& graph, const CapturedTouch& touch, const Stream& stream,
                            const Site& site) {
    std::vector<Piece> pieces;
    for (const MemoryId id : touch.memory) {
        const auto entry = graph.memory.find(id);
        if (entry == graph.memory.end() || !entry->second) continue;
        // Memory may be mapped there again, for the graph to use.
        if (is_mapping(id) && space_->resolve(touch.address, touch.bytes, pieces)) continue;
        checker.reports.add(ReportKind::use_after_free, *entry->second,
                            mark_of(stream, touch.use, site), touch.address, touch.bytes);
        return true;
    }
    return false;
}

DueCallbacks Machine::take_due_callbacks() {
    DueCallbacks due = user_objects.take_due();
    if (settings.checker) {
        for (const DestroyCallback& each : due) checker.host_waited(each.over);
    }
    return due;
}

void Machine::drop_physical(const std::shared_ptr<Physical>& physical) {
    const std::uint64_t begin = physical->offset | Space::physical_tag;
    const std::uint64_t bytes = physical->bytes;
    if (space_->release_if_unused(physical) && settings.checker) {
        checker.forget(Range{begin, begin + bytes, 0});
    }
}

}  // namespace vramkit::sim
