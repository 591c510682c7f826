// Idle extents as long as they stay where they are: joined, cut, handed out, given back.
#include "pool/extents.h"

#include <algorithm>

namespace vramkit::pool {
namespace {

// Extents that are looked at for a run between borders, before a handle is cut.
constexpr int kLooks = 8;

}  // namespace

Extents::~Extents() {
    for (const auto& [address, mapped] : places_) {
        const Place place{address, mapped.piece};
        if (!mappings_.unmap(place)) mappings_.leave(place);
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
    // Where the addresses have memory, nothing moves, and one handle is as good.
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
        places_.emplace(address, Mapped{piece});
        borders_.enter({address, piece.bytes});
        address += piece.bytes;
    }
}

void Extents::give(Extent extent, std::int64_t now) {
    for (auto place = places_.find(place_of(extent.address)->first);
         place != places_.end() && place->first < extent.end(); ++place) {
        place->second.since = std::max(place->second.since, now);
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
        // Its last part is longer than needed.
        if (!found && borders_.may_cut(extent, run.address + least, cut_up_to)) {
            found = Extent{run.address, least};
        }
    }
    if (found) cut_out(*found);
    return found;
}

Extent Extents::smallest_run(const Extent& extent, std::uint64_t least) const {
    Extent best = extent;
    Extent run{extent.address, 0};
    auto first = place_of(extent.address);
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

std::uint64_t Extents::release(std::uint64_t bytes, std::int64_t idle_before) {
    const std::uint64_t before = mapped();
    mappings_.unmap_old(kEveryPlace);
    std::vector<std::pair<std::int64_t, Place>> oldest;  // since
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Place& place) {
            const std::int64_t since = places_.at(place.address).since;
            if (since < idle_before) oldest.emplace_back(since, place);
        });
    });
    std::ranges::stable_sort(oldest, {}, [](const auto& each) { return each.first; });
    for (const auto& [since, place] : oldest) {
        if (before - mapped() >= bytes) break;
        if (mappings_.has_old_place(place.piece) || !mappings_.unmap(place)) continue;
        cut_out({place.address, place.piece.bytes});
        places_.erase(place.address);
        // A driver that refuses to take a handle gets no more of them: they serve better idle.
        if (!mappings_.release(place.piece)) break;
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
    places_.clear();
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
