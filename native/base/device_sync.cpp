// A wait for the card, by memory that is taken and freed for it.
#include "base/device_sync.h"
#include "base/rules.h"

#include "base/sizes.h"

namespace vramkit {

bool DeviceSync::wait() {
    if (!is_taken() && !take()) return false;
    {
        const Checker::RelyingOnWaits relying(checker_);
        if (!is_broken(Rule::card_is_waited_for) && free() != CUDA_SUCCESS) return false;
    }
    forget();
    return true;
}

// A page of its own: what shares one need not go back to the card when it is freed.
bool DeviceSync::take() {
    if (call_.cuMemAlloc_v2(&device_, kPage) == CUDA_SUCCESS) return true;
    device_ = 0;
    // The card is full, perhaps of what is waited for. cuMemFreeHost waits in the same way.
    if (call_.cuMemHostAlloc(&host_, kPage, 0) == CUDA_SUCCESS) return true;
    host_ = nullptr;
    return false;
}

CUresult DeviceSync::free() {
    return device_ != 0 ? call_.cuMemFree_v2(device_) : call_.cuMemFreeHost(host_);
}

void DeviceSync::give_back() {
    if (is_taken() && free() == CUDA_SUCCESS) forget();
}

void DeviceSync::forget() {
    device_ = 0;
    host_ = nullptr;
}

}  // namespace vramkit
