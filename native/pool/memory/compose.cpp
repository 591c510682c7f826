// Idle memory that moves: its handles are mapped again, side by side, and leave their old mappings.
#include <algorithm>
#include <limits>

#include "base/failure.h"
#include "pool/memory/extents.h"

namespace vramkit::pool {

std::optional<Extent> Extents::compose(std::uint64_t bytes, std::uint64_t may_create,
                                       std::span<const Extent> given, const Done& done,
                                       Failure& why) {
    std::vector<Mapping> from_given;
    for (const Extent& extent : given) {
        each_whole(extent, [&](const Mapping& mapping) { from_given.push_back(mapping); });
    }
    std::vector<Piece> pieces;
    Extent made;
    const auto add = [&](const Mapping& mapping) {
        pieces.push_back(mapping.piece);
        made.bytes += mapping.piece.bytes;
    };
    for (const Mapping& mapping : from_given) add(mapping);
    const std::vector<Mapping> chosen =
        made.bytes < bytes ? choose(bytes - made.bytes) : std::vector<Mapping>();
    for (const Mapping& mapping : chosen) add(mapping);
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
    for (const Mapping& mapping : from_given) {
        by_address_.erase(mapping.address);
        mappings_.leave(mapping, done);
    }
    enter(made.address, pieces);
    return made;
}

std::uint64_t Extents::movable(std::uint64_t largest) const {
    std::uint64_t sum = 0;
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Mapping& mapping) {
            if (mapping.piece.bytes <= largest) sum += mapping.piece.bytes;
        });
    });
    return sum;
}

std::vector<Mapping> Extents::choose(std::uint64_t bytes) const {
    std::vector<Mapping> mappings;
    std::uint64_t sum = 0;
    each_idle([&](const Extent& extent) {
        each_whole(extent, [&](const Mapping& mapping) {
            if (mapping.piece.bytes > bytes) return;
            mappings.push_back(mapping);
            sum += mapping.piece.bytes;
        });
    });
    if (sum < bytes) return mappings;
    std::ranges::stable_sort(mappings, std::ranges::greater{},
                             [](const Mapping& mapping) { return mapping.piece.bytes; });
    std::uint64_t rest = bytes;
    auto next = mappings.begin();
    for (; rest > 0 && next->piece.bytes <= rest; ++next) rest -= next->piece.bytes;
    if (rest > 0) {
        const auto too_small = std::partition_point(
            next, mappings.end(),
            [&](const Mapping& mapping) { return mapping.piece.bytes >= rest; });
        *next++ = *std::prev(too_small);
    }
    mappings.erase(next, mappings.end());
    return mappings;
}

std::uint64_t Extents::join(Failure& why) {
    if (addresses_.have_memory()) return 0;
    Extent most;  // the last extent with the most idle handles
    std::uint64_t most_bytes = 0, all_bytes = 0;
    each_idle([&](const Extent& extent) {
        std::uint64_t bytes = 0;
        each_whole(extent, [&](const Mapping& mapping) { bytes += mapping.piece.bytes; });
        all_bytes += bytes;
        if (bytes == 0 || bytes < most_bytes) return;
        most = extent;
        most_bytes = bytes;
    });
    if (all_bytes == most_bytes) return 0;
    const bool stays = addresses_.take_at(most.end(), all_bytes - most_bytes);
    std::vector<Mapping> moved;
    std::vector<Piece> pieces;
    std::vector<std::int64_t> since;
    each_idle([&](const Extent& extent) {
        if (stays && extent.address == most.address) return;
        each_whole(extent, [&](const Mapping& mapping) {
            moved.push_back(mapping);
            pieces.push_back(mapping.piece);
            since.push_back(by_address_.at(mapping.address).since);
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

void Extents::leave(const std::vector<Mapping>& mappings) {
    for (const Mapping& mapping : mappings) {
        cut_out({mapping.address, mapping.piece.bytes});
        by_address_.erase(mapping.address);
        mappings_.leave(mapping);
    }
}

}  // namespace vramkit::pool
