// Idle extents that move: their handles are mapped anew, side by side, and leave their old places.
#include <algorithm>
#include <iterator>
#include <limits>

#include "pool/extents.h"
#include "pool/failure.h"

namespace vramkit::pool {

std::optional<Extent> Extents::compose(std::uint64_t bytes, std::uint64_t may_create,
                                       Failure& why) {
    const std::vector<Place> chosen = choose(bytes);
    Extent made;
    for (const Place& place : chosen) {
        made.pieces.push_back(place.piece);
        made.bytes += place.piece.bytes;
    }
    if (made.bytes >= bytes && chosen.size() == 1) {
        made.address = chosen.front().address;
        const auto source = std::prev(idle_.upper_bound(made.address));
        sift(source->first, [&](const Place& place) { return place.address == made.address; });
        return made;
    }
    std::optional<Piece> rest;
    if (made.bytes < bytes) {
        if (bytes - made.bytes > may_create) {
            note_shortage("", why);
            return std::nullopt;
        }
        rest = mappings_.create(bytes - made.bytes, why);
        if (!rest) return std::nullopt;
        made.pieces.push_back(*rest);
        made.bytes = bytes;
    }
    made.address = mappings_.map(made.pieces, why);
    if (made.address == 0) {
        if (rest) mappings_.release(*rest);
        return std::nullopt;
    }
    leave(chosen);
    return made;
}

std::vector<Place> Extents::choose(std::uint64_t bytes) const {
    std::vector<Place> places;
    std::optional<Place> larger;  // the smallest that covers `bytes` alone and is larger
    std::uint64_t sum = 0;
    for (const auto& [address, idle] : idle_) {
        idle.extent.each_place([&](const Place& place) {
            if (place.piece.bytes <= bytes) {
                places.push_back(place);
                sum += place.piece.bytes;
            } else if (!larger || place.piece.bytes < larger->piece.bytes) {
                larger = place;
            }
        });
    }
    if (sum < bytes) return larger ? std::vector<Place>{*larger} : places;
    std::ranges::stable_sort(places, std::ranges::greater{},
                             [](const Place& place) { return place.piece.bytes; });
    std::uint64_t rest = bytes;
    auto next = places.begin();
    for (; rest > 0 && next->piece.bytes <= rest; ++next) rest -= next->piece.bytes;
    if (rest > 0) {
        const auto too_small = std::partition_point(
            next, places.end(), [&](const Place& place) { return place.piece.bytes >= rest; });
        *next++ = *std::prev(too_small);
    }
    places.erase(next, places.end());
    return places;
}

std::uint64_t Extents::join(std::uint64_t at_least, Failure& why) {
    if (addresses_.have_memory()) return 0;
    if (largest_idle() >= at_least || idle_bytes_ < at_least) return 0;
    const auto [largest_bytes, largest] = *by_size_.rbegin();
    const std::uint64_t behind = largest + largest_bytes;
    const bool stays = addresses_.take_at(behind, idle_bytes_ - largest_bytes);
    Idle joined{{}, std::numeric_limits<std::int64_t>::min()};
    std::vector<Place> moved;
    for (const auto& [address, idle] : idle_) {
        if (stays && address == largest) continue;
        joined.since = std::max(joined.since, idle.since);
        joined.extent.bytes += idle.extent.bytes;
        idle.extent.each_place([&](const Place& place) {
            moved.push_back(place);
            joined.extent.pieces.push_back(place.piece);
        });
    }
    if (stays) {
        const bool done = mappings_.map_at(behind, joined.extent.pieces, why);
        joined.extent.address = done ? behind : 0;
    } else {
        joined.extent.address = mappings_.map(joined.extent.pieces, why);
    }
    if (joined.extent.address == 0) return 0;
    const std::uint64_t bytes = joined.extent.bytes;
    leave(std::move(moved));
    give(std::move(joined.extent), joined.since);
    return bytes;
}

void Extents::leave(std::vector<Place> places) {
    std::ranges::sort(places, {}, &Place::address);
    for (auto next = places.begin(); next != places.end();) {
        const auto source = std::prev(idle_.upper_bound(next->address));
        sift(source->first, [&](const Place& place) {
            if (next == places.end() || next->address != place.address) return false;
            mappings_.leave(place);
            ++next;
            return true;
        });
    }
}

}  // namespace vramkit::pool
