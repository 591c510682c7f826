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
    std::vector<Piece> rest;
    if (made.bytes < bytes) {
        if (bytes - made.bytes > may_create) {
            note_shortage("", why);
            return std::nullopt;
        }
        pieces.reserve(pieces.size() + (bytes - made.bytes) / kPage);
        rest = create_pieces(bytes - made.bytes, why);
        if (rest.empty()) return std::nullopt;
        pieces.insert(pieces.end(), rest.begin(), rest.end());
        made.bytes = bytes;
    }
    made.address = mappings_.map(pieces, why);
    if (made.address == 0) {
        for (const Piece& piece : rest) mappings_.release(piece);
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
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Place& place) {
            if (place.piece.bytes <= largest) sum += place.piece.bytes;
        });
    });
    return sum;
}

std::vector<Place> Extents::choose(std::uint64_t bytes) const {
    std::vector<Place> places;
    std::uint64_t sum = 0;
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Place& place) {
            if (place.piece.bytes > bytes) return;
            places.push_back(place);
            sum += place.piece.bytes;
        });
    });
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
    Extent most;  // the last extent with the most idle handles
    std::uint64_t most_bytes = 0, all_bytes = 0;
    each_idle([&](const Extent& extent) {
        std::uint64_t bytes = 0;
        each_whole(extent, [&](const Place& place) { bytes += place.piece.bytes; });
        all_bytes += bytes;
        if (bytes == 0 || bytes < most_bytes) return;
        most = extent;
        most_bytes = bytes;
    });
    if (all_bytes == most_bytes) return 0;
    const bool stays = addresses_.take_at(most.end(), all_bytes - most_bytes);
    std::vector<Place> moved;
    std::vector<Piece> pieces;
    std::vector<std::int64_t> since;
    each_idle([&](const Extent& extent) {
        if (stays && extent.address == most.address) return;
        each_whole(extent, [&](const Place& place) {
            moved.push_back(place);
            pieces.push_back(place.piece);
            since.push_back(places_.at(place.address).since);
        });
    });
    std::uint64_t to = most.end();
    if (!stays) {
        to = mappings_.map(pieces, why);
    } else if (!mappings_.map_at(to, pieces, why)) {
        to = 0;
    }
    if (to == 0) return 0;
    leave(moved);
    enter(to, pieces);
    std::uint64_t at = to;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        give({at, pieces[i].bytes}, since[i]);
        at += pieces[i].bytes;
    }
    return at - to;
}

void Extents::leave(const std::vector<Place>& places) {
    for (const Place& place : places) {
        cut_out({place.address, place.piece.bytes});
        places_.erase(place.address);
        mappings_.leave(place);
    }
}

}  // namespace vramkit::pool
