// Extents that stay at their addresses: joined, cut, handed out, given back.
#include "pool/memory/extents.h"

#include <algorithm>

namespace vramkit::pool {
namespace {

// Extents that are searched for a run between handle bounds before a handle is cut.
constexpr int kLooks = 8;

}  // namespace

Extents::~Extents() {
    for (const auto& [address, mapped] : by_address_) {
        const Mapping mapping{address, mapped.piece};
        if (!mappings_.unmap(mapping)) mappings_.leave(mapping);
        mappings_.release(mapped.piece);
    }
}

std::optional<Extent> Extents::create(std::uint64_t bytes, Failure& why) {
    const std::vector<Piece> pieces = create_pieces(bytes, why);
    if (pieces.empty()) return std::nullopt;
    const std::uint64_t address = mappings_.map(pieces, why);
    if (address == 0) {
        for (const Piece& piece : pieces) mappings_.release(piece);
        return std::nullopt;
    }
    enter(address, pieces);
    return Extent{address, bytes};
}

std::vector<Piece> Extents::create_pieces(std::uint64_t bytes, Failure& why) {
    // With fixed memory nothing moves, so one handle is enough.
    const std::uint64_t most = addresses_.have_memory() ? bytes : handle_bytes_;
    if (bytes > most && mappings_.card_has_less(bytes)) {
        why = Failure::of_driver(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate");
        return {};
    }
    std::vector<Piece> pieces;
    pieces.reserve(bytes / most + 1);
    while (bytes > 0) {
        const std::optional<Piece> piece = mappings_.create(std::min(bytes, most), why);
        if (!piece) {
            for (const Piece& each : pieces) mappings_.release(each);
            return {};
        }
        pieces.push_back(*piece);
        bytes -= piece->bytes;
    }
    return pieces;
}

void Extents::enter(std::uint64_t address, std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) {
        by_address_.emplace(address, Mapped{piece});
        bounds_.enter({address, piece.bytes});
        address += piece.bytes;
    }
}

void Extents::give(Extent extent, std::int64_t now) {
    for (auto mapping = by_address_.find(mapping_of(extent.address)->first);
         mapping != by_address_.end() && mapping->first < extent.end(); ++mapping) {
        mapping->second.since = std::max(mapping->second.since, now);
    }
    Extent whole = extent;
    const auto after = idle_.lower_bound(extent.address);
    if (after != idle_.begin()) {
        const auto [address, bytes] = *std::prev(after);
        if (address + bytes == extent.address) {
            remove(address);
            whole = {address, bytes + whole.bytes};
        }
    }
    if (after != idle_.end() && after->first == extent.end()) {
        whole.bytes += remove(after->first).bytes;
    }
    add(whole);
}

std::optional<Extent> Extents::take(std::uint64_t least, std::uint64_t most,
                                    std::uint64_t cut_up_to) {
    std::optional<Extent> found;
    int looks = kLooks;
    for (auto each = by_size_.lower_bound({least, 0}); each != by_size_.end() && looks > 0;
         ++each, --looks) {
        const Extent extent{each->second, each->first};
        const Extent run = smallest_run(extent, least);
        if (run.bytes <= most) {
            found = run;
            break;
        }
        // The run is longer than needed: cut its last handle.
        if (!found && bounds_.may_cut(extent, run.address + least, cut_up_to)) {
            found = Extent{run.address, least};
        }
    }
    if (found) cut_out(*found);
    return found;
}

Extent Extents::smallest_run(const Extent& extent, std::uint64_t least) const {
    Extent best = extent;
    Extent run{extent.address, 0};
    auto first = mapping_of(extent.address);
    for (auto last = first; run.end() < extent.end() && best.bytes > least; ++last) {
        run.bytes = std::min(end_of(*last), extent.end()) - run.address;
        while (run.bytes >= least) {
            if (run.bytes < best.bytes) best = run;
            if (first == last) break;
            run = {end_of(*first), run.end() - end_of(*first)};
            ++first;
        }
    }
    return best;
}

std::uint64_t Extents::release(std::uint64_t bytes, std::int64_t idle_before, std::size_t at_most,
                               bool* more) {
    const std::uint64_t before = mapped();
    mappings_.unmap_old(at_most);
    std::vector<std::pair<std::int64_t, Mapping>> oldest;  // since
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Mapping& mapping) {
            const std::int64_t since = by_address_.at(mapping.address).since;
            if (since < idle_before) oldest.emplace_back(since, mapping);
        });
    });
    std::ranges::stable_sort(oldest, {}, [](const auto& each) { return each.first; });
    for (const auto& [since, mapping] : oldest) {
        if (before - mapped() >= bytes) break;
        if (at_most == 0) {
            if (more != nullptr) *more = true;
            break;
        }
        if (mappings_.has_old_mapping(mapping.piece) || !mappings_.unmap(mapping)) continue;
        --at_most;  // one that is refused does not count
        cut_out({mapping.address, mapping.piece.bytes});
        by_address_.erase(mapping.address);
        // If the driver refuses one handle, stop: the others are more useful idle.
        if (!mappings_.release(mapping.piece)) break;
    }
    return before - mapped();
}

std::uint64_t Extents::idle_smaller_than(std::uint64_t bytes) const {
    std::uint64_t sum = 0;
    for (auto each = by_size_.begin(); each != by_size_.end() && each->first < bytes; ++each) {
        sum += each->first;
    }
    return sum;
}

void Extents::forget() {
    by_address_.clear();
    idle_.clear();
    by_size_.clear();
    idle_bytes_ = 0;
    mappings_.forget();
}

void Extents::add(const Extent& extent) {
    idle_bytes_ += extent.bytes;
    by_size_.emplace(extent.bytes, extent.address);
    idle_.emplace(extent.address, extent.bytes);
}

Extent Extents::remove(std::uint64_t address) {
    const std::uint64_t bytes = idle_.extract(address).mapped();
    idle_bytes_ -= bytes;
    by_size_.erase({bytes, address});
    return {address, bytes};
}

void Extents::cut_out(const Extent& part) {
    const Extent extent = remove(std::prev(idle_.upper_bound(part.address))->first);
    if (part.address > extent.address) add({extent.address, part.address - extent.address});
    if (part.end() < extent.end()) add({part.end(), extent.end() - part.end()});
}

}  // namespace vramkit::pool
