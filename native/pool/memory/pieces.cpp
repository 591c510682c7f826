// Pieces are created, moved and released.
#include "pool/memory/pieces.h"

#include <set>

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kLargestEdge = std::uint64_t{4} << 20;

}  // namespace

Pieces::~Pieces() {
    if (addresses_.have_memory()) return;
    for (const auto& [address, mapped] : by_address_) {
        const Mapping mapping{address, mapped.piece};
        if (!mappings_.unmap(mapping)) mappings_.leave(mapping);
        mappings_.release(mapped.piece);
    }
}

std::vector<Piece> Pieces::create(std::uint64_t bytes, std::uint64_t most, Failure& why) {
    if (bytes > most && mappings_.card_has_less(bytes)) {
        why = Failure::of_driver(CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate");
        return {};
    }
    std::vector<Piece> pieces;
    pieces.reserve(bytes / most + 2);
    while (bytes > 0) {
        std::uint64_t size = std::min(bytes, most);
        // What is mapped behind this later begins in its last page: if that is a large piece, one
        // block would keep the memory of two from moving.
        if (size == bytes && size > kLargestEdge) size -= kPage;
        const std::optional<Piece> piece = mappings_.create(size, why);
        if (!piece) {
            for (const Piece& each : pieces) mappings_.release(each);
            return {};
        }
        pieces.push_back(*piece);
        bytes -= piece->bytes;
    }
    return pieces;
}

bool Pieces::map(std::uint64_t address, std::span<const Mapping> moved, std::uint64_t bytes,
                 std::uint64_t most, Failure& why) {
    std::vector<Piece> pieces;
    std::uint64_t all = bytes;
    for (const Mapping& mapping : moved) all += mapping.piece.bytes;
    pieces.reserve(moved.size() + bytes / most + 1);
    for (const Mapping& mapping : moved) pieces.push_back(mapping.piece);
    const std::vector<Piece> made = create(bytes, most, why);
    if (bytes > 0 && made.empty()) {
        addresses_.give(address, all);
        return false;
    }
    pieces.insert(pieces.end(), made.begin(), made.end());
    if (!mappings_.map(address, pieces, why)) {
        for (const Piece& piece : made) mappings_.release(piece);
        return false;
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        Mapped mapped{pieces[i]};
        if (i < moved.size()) {
            const auto before = by_address_.find(moved[i].address);
            mapped.since = before->second.since;
            by_address_.erase(before);
        }
        by_address_.emplace(address, mapped);
        address += pieces[i].bytes;
    }
    return true;
}

bool Pieces::release(const Mapping& mapping, bool& released) {
    if (!may_release(mapping) || !mappings_.unmap(mapping)) return false;
    by_address_.erase(mapping.address);
    released = mappings_.release(mapping.piece);
    return true;
}

void Pieces::note_idle(const Extent& extent, std::int64_t now) {
    for (auto piece = std::prev(by_address_.upper_bound(extent.address));
         piece != by_address_.end() && piece->first < extent.end(); ++piece) {
        piece->second.since = std::max(piece->second.since, now);
    }
}

void Pieces::forget() {
    by_address_.clear();
    mappings_.forget();
}

std::string Pieces::check(const std::vector<Extent>& used) const {
    const auto text = [](const Extent& extent) {
        return "[" + std::to_string(extent.address) + ", " + std::to_string(extent.end()) + ")";
    };
    std::vector<Extent> mapped, addresses;
    std::set<CUmemGenericAllocationHandle> handles;
    std::uint64_t mapped_bytes = 0;
    for (const auto& [address, each] : by_address_) {
        const Extent extent{address, each.piece.bytes};
        if (!handles.insert(each.piece.handle).second) return text(extent) + " shares a handle";
        if (!mapped.empty() && mapped.back().end() == address) {
            mapped.back().bytes += extent.bytes;
        } else {
            mapped.push_back(extent);
        }
        addresses.push_back(extent);
        mapped_bytes += extent.bytes;
    }
    // The same stretches of addresses, however each is divided.
    std::vector<Extent> stretches;
    for (const Extent& extent : used) {
        if (!stretches.empty() && extent.address < stretches.back().end()) {
            return text(extent) + " overlaps the one before";
        }
        if (!stretches.empty() && extent.address == stretches.back().end()) {
            stretches.back().bytes += extent.bytes;
        } else {
            stretches.push_back(extent);
        }
    }
    for (std::size_t i = 0; i < std::max(mapped.size(), stretches.size()); ++i) {
        const Extent a = i < mapped.size() ? mapped[i] : Extent{};
        const Extent b = i < stretches.size() ? stretches[i] : Extent{};
        if (a.address != b.address || a.bytes != b.bytes) {
            return "mapped is " + text(a) + ", used is " + text(b);
        }
    }
    for (const auto& [begin, bytes] : addresses_.holes().ranges())
        addresses.push_back({begin, bytes});
    mappings_.each_old_mapping([&](const Mapping& mapping) {
        addresses.push_back({mapping.address, mapping.piece.bytes});
    });
    std::ranges::sort(addresses, {}, &Extent::address);
    std::uint64_t at = addresses_.base();
    for (const Extent& extent : addresses) {
        if (extent.address != at) return text(extent) + " overlaps another, or addresses are lost";
        at = extent.end();
    }
    if (at != addresses_.base() + addresses_.bytes()) return "addresses are lost at the end";
    if (this->mapped() != mapped_bytes + mappings_.unreleased()) return "memory is lost";
    return "";
}

}  // namespace vramkit::pool
