// Records events around copies.
#include "weights/copy_timer.h"

namespace vramkit::weights {

bool CopyTimer::make(const DriverTable& call, Failure& why) {
    for (Copy& copy : copies_) {
        for (CUevent* event : {&copy.began, &copy.ended}) {
            if (*event == nullptr &&
                failed(call.cuEventCreate(event, CU_EVENT_DEFAULT), "cuEventCreate", why)) {
                return false;
            }
        }
    }
    return true;
}

void CopyTimer::destroy(const DriverTable& call) {
    for (const Copy& copy : copies_) {
        if (copy.began != nullptr) call.cuEventDestroy_v2(copy.began);
        if (copy.ended != nullptr) call.cuEventDestroy_v2(copy.ended);
    }
}

void CopyTimer::begins(const DriverTable& call, CUstream stream) {
    now_ = 1 - now_;
    Copy& copy = copies_[now_];
    copy.done = copy.ended != nullptr && call.cuEventRecord(copy.began, stream) == CUDA_SUCCESS;
}

void CopyTimer::ends(const DriverTable& call, CUstream stream) {
    Copy& copy = copies_[now_];
    copy.done = copy.done && call.cuEventRecord(copy.ended, stream) == CUDA_SUCCESS;
}

bool CopyTimer::times(const DriverTable& call, CUevent since,
                      std::vector<std::pair<double, double>>& out, Failure& why) const {
    const auto seconds_until = [&](CUevent event, double& seconds) {
        float milliseconds = 0;
        if (failed(call.cuEventSynchronize(event), "cuEventSynchronize", why) ||
            failed(call.cuEventElapsedTime(&milliseconds, since, event), "cuEventElapsedTime",
                   why)) {
            return false;
        }
        seconds = milliseconds * 1e-3;
        return true;
    };
    for (const Copy& copy : copies_) {
        if (!copy.done) continue;
        auto& [began, ended] = out.emplace_back();
        if (!seconds_until(copy.began, began) || !seconds_until(copy.ended, ended)) return false;
    }
    return true;
}

}  // namespace vramkit::weights
