// Maps, populates and registers slabs of host memory, and cuts pieces from them.
#include "swap/host_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/sizes.h"
#include "swap/populate.h"

namespace vramkit::swap {
namespace {

std::uint64_t address_of(const std::byte* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

void unmap(std::byte* data, std::uint64_t bytes) {
    if (bytes > 0) ::munmap(data, bytes);
}

// Addresses that begin at a huge page; null: the system has none.
std::byte* map_huge(std::uint64_t bytes) {
    void* const mapped = ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(mapped);
    const std::uint64_t before = round_up(address_of(begin), kPage) - address_of(begin);
    unmap(begin, before);
    unmap(begin + before + bytes, kPage - before);
    // Advice: without huge pages it is slower, and no less right. A child that is forked has no use
    // for pinned memory, and a copy of its pages would take them from the driver.
    ::madvise(begin + before, bytes, MADV_HUGEPAGE);
    ::madvise(begin + before, bytes, MADV_DONTFORK);
    return begin + before;
}

}  // namespace

HostStore::~HostStore() {
    for (Slab& slab : slabs_) give_back(slab);
}

bool HostStore::prepare(std::uint64_t bytes, Failure& why) {
    while (held_ - used_ < bytes) {
        const std::uint64_t missing = round_up(bytes - (held_ - used_), kPage);
        const std::uint64_t slab = std::min(missing, settings_.slab_bytes);
        if (!add(slab, slab, why)) return false;
    }
    return true;
}

bool HostStore::take(std::uint64_t bytes, HostPiece& piece, Failure& why) {
    if (take_free(bytes, piece)) return true;
    return add(bytes, std::max(bytes, settings_.slab_bytes), why) && take_free(bytes, piece);
}

bool HostStore::take_free(std::uint64_t bytes, HostPiece& piece) {
    // Best fit over all slabs.
    Slab* best = nullptr;
    for (Slab& slab : slabs_) {
        if (slab.free.largest() < bytes) continue;
        if (best == nullptr || slab.free.largest() < best->free.largest()) best = &slab;
    }
    if (best == nullptr) return false;
    piece.data = reinterpret_cast<std::byte*>(best->free.take_best(bytes));
    piece.bytes = bytes;
    piece.slab = static_cast<std::size_t>(best - slabs_.data());
    used_ += bytes;
    return true;
}

void HostStore::give(HostPiece& piece) {
    if (!piece) return;
    slabs_[piece.slab].free.insert(address_of(piece.data), piece.bytes);
    used_ -= piece.bytes;
    piece = {};
}

std::uint64_t HostStore::room(std::uint64_t least, Failure& why) const {
    const auto mebibytes = [](std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
    const std::uint64_t allowed =
        settings_.limit == 0 ? std::numeric_limits<std::uint64_t>::max() : settings_.limit - held_;
    if (allowed < least) {
        why = Failure::out_of_memory();
        why.message = "host memory for swapped data is limited to " + mebibytes(settings_.limit) +
                      ", of which " + mebibytes(held_) + " are held; " + mebibytes(least) +
                      " more are needed";
        return allowed;
    }
    const HostRoom left = settings_.room();
    if (left.usable() < least) why = left.refusal(least);
    return std::min(allowed, left.usable());
}

bool HostStore::add(std::uint64_t least, std::uint64_t most, Failure& why) {
    const std::uint64_t allowed = room(least, why);
    if (allowed < least) return false;
    const std::uint64_t bytes = std::min(most, allowed / kPage * kPage);
    Slab slab{map_huge(bytes), bytes, {}};
    if (slab.data == nullptr || !populate(slab.data, bytes, settings_.threads)) {
        if (slab.data != nullptr) unmap(slab.data, bytes);
        why = Failure::out_of_memory();
        why.message = "the system has no " + std::to_string(bytes >> 20) +
                      " MiB of host memory for swapped data";
        return false;
    }
    // Portable: pinned in every context of the process.
    if (failed(call_.cuMemHostRegister_v2(slab.data, bytes, VRAMKIT_MEMHOSTREGISTER_PORTABLE),
               "cuMemHostRegister", why)) {
        unmap(slab.data, bytes);
        return false;
    }
    slab.free.insert(address_of(slab.data), bytes);
    held_ += bytes;
    const auto unused = std::find_if(slabs_.begin(), slabs_.end(),
                                     [](const Slab& each) { return each.data == nullptr; });
    if (unused != slabs_.end()) {
        *unused = std::move(slab);
    } else {
        slabs_.push_back(std::move(slab));
    }
    return true;
}

void HostStore::trim() {
    for (Slab& slab : slabs_) {
        if (slab.data != nullptr && slab.free.bytes() == slab.bytes) give_back(slab);
    }
}

// False: the driver still knows the memory, and it stays.
bool HostStore::give_back(Slab& slab) {
    if (slab.data == nullptr || call_.cuMemHostUnregister(slab.data) != CUDA_SUCCESS) return false;
    unmap(slab.data, slab.bytes);
    held_ -= slab.bytes;
    slab = {};
    return true;
}

}  // namespace vramkit::swap
