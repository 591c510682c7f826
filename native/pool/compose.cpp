// Idle memory that moves: its handles are mapped anew, side by side, and leave their old places.
#include <algorithm>
#include <limits>

#include "pool/extents.h"
#include "pool/failure.h"

namespace vramkit::pool {

std::optional<Extent> Extents::compose(std::uint64_t bytes, std::uint64_t may_create,
                                       std::span<const Extent> given, const Done& done,
                                       Failure& why) {
    std::vector<Place> from_given;
    for (const Extent& extent : given) {
        each_whole(extent, [&](const Place& place) { from_given.push_back(place); });
    }
    std::vector<Piece> pieces;
    Extent made;
    const auto add = [&](const Place& place) {
        pieces.push_back(place.piece);
        made.bytes += place.piece.bytes;
    };
    for (const Place& place : from_given) add(place);
    const std::vector<Place> chosen =
        made.bytes < bytes ? choose(bytes - made.bytes) : std::vector<Place>();
    for (const Place& place : chosen) add(place);
    std::optional<Piece> rest;
    if (made.bytes < bytes) {
        if (bytes - made.bytes > may_create) {
            note_shortage("", why);
            return std::nullopt;
        }
        rest = mappings_.create(bytes - made.bytes, why);
        if (!rest) return std::nullopt;
        pieces.push_back(*rest);
        made.bytes = bytes;
    }
    made.address = mappings_.map(pieces, why);
    if (made.address == 0) {
        if (rest) mappings_.release(*rest);
        return std::nullopt;
    }
    leave(chosen);
    for (const Place& place : from_given) {
        places_.erase(place.address);
        mappings_.leave(place, done);
    }
    enter(made.address, pieces);
    return made;
}

std::uint64_t Extents::movable(std::uint64_t largest) const {
    std::uint64_t sum = 0;
    for (const auto& [address, idle] : idle_) {
        each_whole(idle.extent, [&](const Place& place) {
            if (place.piece.bytes <= largest) sum += place.piece.bytes;
        });
    }
    return sum;
}

std::vector<Place> Extents::choose(std::uint64_t bytes) const {
    std::vector<Place> places;
    std::uint64_t sum = 0;
    for (const auto& [address, idle] : idle_) {
        each_whole(idle.extent, [&](const Place& place) {
            if (place.piece.bytes > bytes) return;
            places.push_back(place);
            sum += place.piece.bytes;
        });
    }
    if (sum < bytes) return places;
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

std::uint64_t Extents::join(Failure& why) {
    if (addresses_.have_memory()) return 0;
    const Idle* most = nullptr;  // the last extent with the most idle handles
    std::uint64_t most_bytes = 0, all_bytes = 0;
    std::int64_t since = std::numeric_limits<std::int64_t>::min();
    for (const auto& [address, idle] : idle_) {
        std::uint64_t bytes = 0;
        each_whole(idle.extent, [&](const Place& place) { bytes += place.piece.bytes; });
        if (bytes == 0) continue;
        all_bytes += bytes;
        since = std::max(since, idle.since);
        if (bytes < most_bytes) continue;
        most = &idle;
        most_bytes = bytes;
    }
    if (all_bytes == most_bytes) return 0;
    const std::uint64_t behind = most->extent.end();
    const bool stays = addresses_.take_at(behind, all_bytes - most_bytes);
    std::vector<Place> moved;
    std::vector<Piece> pieces;
    for (const auto& [address, idle] : idle_) {
        if (stays && &idle == most) continue;
        each_whole(idle.extent, [&](const Place& place) {
            moved.push_back(place);
            pieces.push_back(place.piece);
        });
    }
    std::uint64_t to = behind;
    if (!stays) {
        to = mappings_.map(pieces, why);
    } else if (!mappings_.map_at(behind, pieces, why)) {
        to = 0;
    }
    if (to == 0) return 0;
    const std::uint64_t bytes = stays ? all_bytes - most_bytes : all_bytes;
    leave(moved);
    enter(to, pieces);
    give({to, bytes}, since);
    return bytes;
}

void Extents::leave(const std::vector<Place>& places) {
    for (const Place& place : places) {
        cut_out({place.address, place.piece.bytes});
        places_.erase(place.address);
        mappings_.leave(place);
    }
}

void Extents::enter(std::uint64_t address, const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
        places_.emplace(address, piece);
        address += piece.bytes;
    }
}

}  // namespace vramkit::pool
