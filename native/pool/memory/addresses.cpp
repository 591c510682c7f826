// Takes the range from the driver, and gives it back.
#include "pool/memory/addresses.h"

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
    // The driver does not promise page alignment: one page more makes room for it.
    if (failed(call.cuMemAlloc_v2(&made->allocation_, bytes + kPage), "cuMemAlloc_v2", why)) {
        return nullptr;
    }
    made->own(round_up(made->allocation_, kPage), bytes);
    return made;
}

// From here on the destructor gives them back, whatever fails.
void Addresses::own(std::uint64_t base, std::uint64_t bytes) {
    base_ = base;
    bytes_ = bytes;
    holes_.insert(base, bytes);
}

void Addresses::release() {
    if (bytes_ == 0) return;
    const CUresult result =
        have_memory() ? call_.cuMemFree_v2(allocation_) : call_.cuMemAddressFree(base_, bytes_);
    if (result == CUDA_SUCCESS) forget();
}

void Addresses::forget() {
    bytes_ = 0;
    holes_ = {};
}

}  // namespace vramkit::pool
