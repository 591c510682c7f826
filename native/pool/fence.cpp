// A wait for the card, by memory that is taken and freed for it.
#include "pool/fence.h"

#include "pool/size_classes.h"

namespace vramkit::pool {

Fence::Fence(const Driver& driver) : call_(driver.call()) {
    rely_on_waits_ = reinterpret_cast<decltype(rely_on_waits_)>(driver.symbol("simRelyOnWaits"));
}

bool Fence::wait() {
    if (!is_taken() && !take()) return false;
    if (rely_on_waits_ != nullptr) rely_on_waits_(1);
    const bool waited = free() == CUDA_SUCCESS;
    if (rely_on_waits_ != nullptr) rely_on_waits_(0);
    if (waited) forget();
    return waited;
}

// A page of its own: what shares one need not go back to the card when it is freed.
bool Fence::take() {
    if (call_.cuMemAlloc_v2(&device_, kPage) == CUDA_SUCCESS) return true;
    device_ = 0;
    // The card is full, perhaps of what is waited for. cuMemFreeHost waits in the same way.
    if (call_.cuMemHostAlloc(&host_, kPage, 0) == CUDA_SUCCESS) return true;
    host_ = nullptr;
    return false;
}

CUresult Fence::free() {
    return device_ != 0 ? call_.cuMemFree_v2(device_) : call_.cuMemFreeHost(host_);
}

void Fence::give_back() {
    if (is_taken() && free() == CUDA_SUCCESS) forget();
}

void Fence::forget() {
    device_ = 0;
    host_ = nullptr;
}

}  // namespace vramkit::pool
