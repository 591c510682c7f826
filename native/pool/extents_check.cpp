// The equations of extents.h, looked at one by one.
#include <algorithm>
#include <iterator>

#include "pool/extents.h"

namespace vramkit::pool {
namespace {

struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    const char* what = "";
};

std::string text(const Stretch& stretch) {
    return std::string(stretch.what) + " [" + std::to_string(stretch.begin) + ", " +
           std::to_string(stretch.end) + ")";
}

}  // namespace

std::string Extents::check(const std::vector<Extent>* held) const {
    std::vector<Stretch> stretches;
    std::set<CUmemGenericAllocationHandle> handles;
    std::string wrong;
    const auto look_at = [&](const Extent& extent, const char* what) {
        const Stretch stretch{extent.address, extent.end(), what};
        stretches.push_back(stretch);
        std::uint64_t sum = 0;
        for (const Piece& piece : extent.pieces) {
            sum += piece.bytes;
            if (!handles.insert(piece.handle).second) wrong = text(stretch) + " shares a handle";
        }
        if (sum != extent.bytes || sum == 0) wrong = text(stretch) + " is not what its pieces are";
    };

    std::uint64_t idle_sum = 0;
    std::size_t several = 0;
    std::uint64_t last_end = 0;
    for (const auto& [address, idle] : idle_) {
        const Extent& extent = idle.extent;
        look_at(extent, "idle extent");
        const bool has_several = extent.pieces.size() > 1;
        if (address != extent.address || !by_size_.contains({extent.bytes, address}) ||
            has_several != several_.contains({extent.bytes, address})) {
            return text(stretches.back()) + " is not in the books as it is";
        }
        if (address == last_end)
            return text(stretches.back()) + " is not joined with the one before";
        last_end = extent.end();
        several += has_several;
        idle_sum += extent.bytes;
    }
    if (by_size_.size() != idle_.size() || several_.size() != several) {
        return "the books by size have other extents than those by address";
    }
    if (idle_sum != idle_bytes_) return "idle() is not the sum of the idle extents";

    for (const auto& [begin, end] : addresses_.holes()) stretches.push_back({begin, end, "hole"});
    for (const Place& place : mappings_.old_places()) {
        stretches.push_back({place.address, place.address + place.piece.bytes, "old place"});
    }
    std::uint64_t held_sum = 0;
    if (held != nullptr) {
        for (const Extent& extent : *held) {
            look_at(extent, "extent handed out");
            held_sum += extent.bytes;
        }
    }
    if (!wrong.empty()) return wrong;

    std::ranges::sort(stretches, {}, &Stretch::begin);
    const std::uint64_t base = addresses_.base(), end = base + addresses_.bytes();
    std::uint64_t at = base, covered = 0;
    for (const Stretch& stretch : stretches) {
        if (stretch.begin < at || stretch.end > end) {
            return text(stretch) + " overlaps another or leaves the reservation";
        }
        at = stretch.end;
        covered += stretch.end - stretch.begin;
    }
    if (held == nullptr) return "";
    if (covered != addresses_.bytes()) return "addresses are lost";
    if (mapped() != idle_bytes_ + held_sum + mappings_.unreleased()) return "memory is lost";
    return "";
}

}  // namespace vramkit::pool
