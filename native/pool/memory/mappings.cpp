// Creates handles, maps them and sets access; unmaps and releases them, now or later.
#include "pool/memory/mappings.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/failure.h"

namespace vramkit::pool {

Mappings::~Mappings() {
    for (Old& old : old_) old.done = {};
    unmap_old(kEveryMapping);
    for (const Piece& piece : unreleased_) call_.cuMemRelease(piece.handle);
}

bool Mappings::card_has_less(std::uint64_t bytes) const {
    size_t free = 0, total = 0;
    return call_.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && free < bytes;
}

std::optional<Piece> Mappings::create(std::uint64_t bytes, Failure& why) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    Piece piece{0, bytes};
    if (failed(call_.cuMemCreate(&piece.handle, bytes, &properties, 0), "cuMemCreate", why)) {
        return std::nullopt;
    }
    created_ += bytes;
    return piece;
}

bool Mappings::map(std::uint64_t address, std::span<const Piece> pieces, Failure& why) {
    const std::uint64_t begin = address;
    std::uint64_t end = begin;
    for (const Piece& piece : pieces) end += piece.bytes;
    std::size_t mapped = 0;
    for (const Piece& piece : pieces) {
        if (failed(call_.cuMemMap(address, piece.bytes, 0, piece.handle, 0), "cuMemMap", why)) {
            break;
        }
        address += piece.bytes;
        ++mapped;
    }
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (mapped == pieces.size() &&
        !failed(call_.cuMemSetAccess(begin, end - begin, &access, 1), "cuMemSetAccess", why)) {
        return true;
    }
    if (address < end) addresses_.give(address, end - address);
    address = begin;
    for (const Piece& piece : pieces.first(mapped)) {
        const Mapping mapping{address, piece};
        if (!unmap(mapping)) leave(mapping);
        address += piece.bytes;
    }
    return false;
}

bool Mappings::unmap(const Mapping& mapping) {
    if (call_.cuMemUnmap(mapping.address, mapping.piece.bytes) != CUDA_SUCCESS) return false;
    addresses_.give(mapping.address, mapping.piece.bytes);
    return true;
}

void Mappings::leave(const Mapping& mapping, Done done) {
    old_.push_back({mapping, std::move(done)});
    ++old_mappings_[mapping.piece.handle];
}

bool Mappings::unmap_old(std::size_t at_most) {
    for (std::size_t tries = std::min(at_most, old_.size()); tries > 0; --tries) {
        Old old = std::move(old_.front());
        old_.pop_front();
        if ((old.done && !old.done()) || !unmap(old.mapping)) {
            old_.push_back(std::move(old));
            continue;
        }
        const auto left = old_mappings_.find(old.mapping.piece.handle);
        if (--left->second == 0) old_mappings_.erase(left);
    }
    for (const Piece& piece : std::exchange(unreleased_, {})) release(piece);
    return old_.empty();
}

bool Mappings::release(const Piece& piece) {
    const bool gone = !has_old_mapping(piece) && call_.cuMemRelease(piece.handle) == CUDA_SUCCESS;
    if (gone) {
        created_ -= piece.bytes;
    } else {
        unreleased_.push_back(piece);
    }
    return gone;
}

std::uint64_t Mappings::unreleased() const {
    return std::accumulate(unreleased_.begin(), unreleased_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Piece& piece) { return sum + piece.bytes; });
}

void Mappings::forget() {
    created_ = 0;
    old_.clear();
    old_mappings_.clear();
    unreleased_.clear();
}

}  // namespace vramkit::pool
