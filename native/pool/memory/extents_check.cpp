// Checks the equations of extents.h one by one.
#include <algorithm>
#include <iterator>

#include "pool/memory/extents.h"

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
    std::vector<Stretch> used;  // must be mapped
    std::uint64_t idle_sum = 0, held_sum = 0, last_end = 0;
    for (const auto& [address, bytes] : idle_) {
        used.push_back({address, address + bytes, "idle extent"});
        if (bytes == 0 || !by_size_.contains({bytes, address})) {
            return text(used.back()) + " is not in the books as it is";
        }
        if (address == last_end) return text(used.back()) + " is not joined with the one before";
        last_end = address + bytes;
        idle_sum += bytes;
    }
    if (by_size_.size() != idle_.size()) {
        return "the books by size have other extents than those by address";
    }
    if (idle_sum != idle_bytes_) return "idle() is not the sum of the idle extents";
    if (held != nullptr) {
        for (const Extent& extent : *held) {
            used.push_back({extent.address, extent.end(), "extent handed out"});
            held_sum += extent.bytes;
        }
    }

    std::vector<Stretch> addresses;
    std::set<CUmemGenericAllocationHandle> handles;
    for (const auto& mapping : by_address_) {
        addresses.push_back({mapping.first, end_of(mapping), "mapping"});
        if (!handles.insert(mapping.second.piece.handle).second) {
            return text(addresses.back()) + " shares a handle";
        }
        const Extent handle = bounds_.handle_at(mapping.first);
        if (handle.address != mapping.first || handle.end() != end_of(mapping)) {
            return text(addresses.back()) + " has other handle bounds";
        }
    }
    for (const Stretch& stretch : used) {
        for (std::uint64_t at = stretch.begin; at < stretch.end;) {
            const auto after = by_address_.upper_bound(at);
            if (after == by_address_.begin() || end_of(*std::prev(after)) <= at) {
                return text(stretch) + " lies where nothing is mapped";
            }
            at = end_of(*std::prev(after));
        }
    }
    for (const auto& [begin, bytes] : addresses_.holes().ranges()) {
        addresses.push_back({begin, begin + bytes, "hole"});
    }
    mappings_.each_old_mapping([&](const Mapping& mapping) {
        addresses.push_back(
            {mapping.address, mapping.address + mapping.piece.bytes, "old mapping"});
    });
    const std::uint64_t base = addresses_.base(), end = base + addresses_.bytes();
    std::uint64_t covered = 0;
    for (auto* list : {&used, &addresses}) {
        std::ranges::sort(*list, {}, &Stretch::begin);
        std::uint64_t at = base;
        covered = 0;
        for (const Stretch& stretch : *list) {
            if (stretch.begin < at || stretch.end > end) {
                return text(stretch) + " overlaps another or leaves the reservation";
            }
            at = stretch.end;
            covered += stretch.end - stretch.begin;
        }
    }
    if (covered != addresses_.bytes()) return "addresses are lost";
    if (held == nullptr) return "";
    if (mapped() != idle_bytes_ + held_sum + mappings_.unreleased()) return "memory is lost";
    return "";
}

}  // namespace vramkit::pool
