// A wait for the card: allocates memory and frees it again, since the free waits.
#include "base/device_sync.h"

#include "base/rules.h"
#include "base/sizes.h"

namespace vramkit {

bool DeviceSync::wait() {
    Page page;
    if (!take(page)) return false;
    const Checker::RelyingOnWaits relying(checker_);
    if (is_broken(Rule::card_is_waited_for) || free(page) == CUDA_SUCCESS) return true;
    const std::lock_guard guard(lock_);
    left_.push_back(page);
    return false;
}

// A whole page: a smaller allocation may share one, and its free need not reach the card.
bool DeviceSync::take(Page& page) {
    {
        const std::lock_guard guard(lock_);
        if (!left_.empty()) {
            page = left_.back();
            left_.pop_back();
            return true;
        }
        left_.reserve(4);  // so that no page is lost when the free fails
    }
    if (call_.cuMemAlloc_v2(&page.device, kPage) == CUDA_SUCCESS) return true;
    page.device = 0;
    // The card is full, perhaps with what the caller waits for. cuMemFreeHost waits as well.
    return call_.cuMemHostAlloc(&page.host, kPage, 0) == CUDA_SUCCESS;
}

CUresult DeviceSync::free(const Page& page) const {
    return page.device != 0 ? call_.cuMemFree_v2(page.device) : call_.cuMemFreeHost(page.host);
}

void DeviceSync::give_back() {
    const std::lock_guard guard(lock_);
    std::erase_if(left_, [this](const Page& page) { return free(page) == CUDA_SUCCESS; });
}

void DeviceSync::forget() {
    const std::lock_guard guard(lock_);
    left_.clear();
}

}  // namespace vramkit
