// Holes by address, to join neighbours, and by size, to find the best fit.
#include "pool/memory/addresses.h"

#include <iterator>
#include <string>

#include "base/failure.h"

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kTimesTheCard = 4;

}  // namespace

std::unique_ptr<Addresses> Addresses::reserve(const DriverTable& call, std::uint64_t card_bytes,
                                              Failure& why) {
    const std::uint64_t bytes = (card_bytes * kTimesTheCard + kPage - 1) / kPage * kPage;
    std::unique_ptr<Addresses> made(new Addresses(call));
    CUdeviceptr base = 0;
    if (failed(call.cuMemAddressReserve(&base, bytes, kPage, 0, 0), "cuMemAddressReserve", why)) {
        if (why.kind == Failure::Kind::out_of_memory) {
            why.message = "addresses are short, not memory: a pool reserves four times the card, " +
                          std::to_string(bytes >> 20) + " MiB. Close pools that nobody needs";
        }
        return nullptr;
    }
    made->own(base, bytes);
    return made;
}

std::unique_ptr<Addresses> Addresses::allocate(const DriverTable& call, std::uint64_t bytes,
                                               Failure& why) {
    std::unique_ptr<Addresses> made(new Addresses(call));
    // The driver promises no alignment to a page: one more makes room for it.
    if (failed(call.cuMemAlloc_v2(&made->allocation_, bytes + kPage), "cuMemAlloc_v2", why)) {
        return nullptr;
    }
    made->own(round_up(made->allocation_, kPage), bytes);
    return made;
}

// From here on they are given back in the end, whatever fails.
void Addresses::own(std::uint64_t base, std::uint64_t bytes) {
    base_ = base;
    bytes_ = bytes;
    add(base, base + bytes);
}

std::uint64_t Addresses::take(std::uint64_t bytes) {
    const auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) return 0;
    const std::uint64_t address = best->second;
    take_at(address, bytes);
    return address;
}

bool Addresses::take_at(std::uint64_t address, std::uint64_t bytes) {
    auto hole = holes_.upper_bound(address);
    if (hole == holes_.begin()) return false;
    --hole;
    const auto [begin, end] = *hole;
    if (end < address + bytes) return false;
    remove(hole);
    if (begin < address) add(begin, address);
    if (address + bytes < end) add(address + bytes, end);
    return true;
}

void Addresses::give(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t begin = address, end = address + bytes;
    auto after = holes_.lower_bound(address);
    if (after != holes_.end() && after->first == end) {
        end = after->second;
        after = remove(after);
    }
    if (after != holes_.begin() && std::prev(after)->second == begin) {
        begin = std::prev(after)->first;
        remove(std::prev(after));
    }
    add(begin, end);
}

void Addresses::release() {
    if (bytes_ == 0) return;
    const CUresult result =
        have_memory() ? call_.cuMemFree_v2(allocation_) : call_.cuMemAddressFree(base_, bytes_);
    if (result == CUDA_SUCCESS) forget();
}

void Addresses::forget() {
    bytes_ = 0;
    holes_.clear();
    by_size_.clear();
}

void Addresses::add(std::uint64_t begin, std::uint64_t end) {
    holes_.emplace(begin, end);
    by_size_.emplace(end - begin, begin);
}

Addresses::Holes::iterator Addresses::remove(Holes::iterator hole) {
    by_size_.erase({hole->second - hole->first, hole->first});
    return holes_.erase(hole);
}

}  // namespace vramkit::pool
