// Calls of the driver's pool.
#include "resources/driver_pool.h"

#include <limits>
#include <utility>

#include "base/scopes.h"

namespace vramkit::resources {

std::shared_ptr<DriverPool> DriverPool::open(std::shared_ptr<Driver> driver, int device,
                                             CUcontext context, Settings settings, Failure& why) {
    const DriverTable& call = driver->call();
    const SlowPathScope scope(call, context);
    std::shared_ptr<DriverPool> made(new DriverPool(std::move(driver), context, settings.shared));
    const char* symbol = settings.shared ? "cuDeviceGetDefaultMemPool" : "cuMemPoolCreate";
    CUresult done = CUDA_ERROR_NOT_SUPPORTED;
    // The calls came together with CUDA 11.2: the driver has all of them or none.
    if (call.cuMemAllocFromPoolAsync != nullptr) {
        if (settings.shared) {
            done = call.cuDeviceGetDefaultMemPool(&made->pool_, device);
        } else {
            CUmemPoolProps properties{};
            properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
            done = call.cuMemPoolCreate(&made->pool_, &properties);
            constexpr std::uint64_t kKeepAll = std::numeric_limits<std::uint64_t>::max();
            if (!settings.release_threshold) settings.release_threshold = kKeepAll;
        }
    }
    if (done == CUDA_SUCCESS && settings.release_threshold) {
        symbol = "cuMemPoolSetAttribute";
        if (settings.shared) made->threshold_before_ = made->release_threshold();
        done = call.cuMemPoolSetAttribute(made->pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                          &*settings.release_threshold);
        if (done != CUDA_SUCCESS) made->end();
    }
    if (done == CUDA_SUCCESS) return made;
    made->refuse(done, symbol, 0, why);
    return nullptr;
}

std::uint64_t DriverPool::take(std::uint64_t bytes, StreamRef stream, Failure& why) {
    CUdeviceptr address = 0;
    const CUresult made = call().cuMemAllocFromPoolAsync(&address, bytes, pool_, stream.handle);
    if (made == CUDA_SUCCESS) return address;
    refuse(made, "cuMemAllocFromPoolAsync", bytes, why);
    return 0;
}

bool DriverPool::give(std::uint64_t address, const Block&, StreamRef at, Failure& why) {
    const CUresult freed = call().cuMemFreeAsync(address, at.handle);
    return freed == CUDA_SUCCESS || refuse(freed, "cuMemFreeAsync", 0, why);
}

bool DriverPool::trim(Failure& why) {
    const CUresult trimmed = call().cuMemPoolTrimTo(pool_, 0);
    return trimmed == CUDA_SUCCESS || refuse(trimmed, "cuMemPoolTrimTo", 0, why);
}

void DriverPool::give_back_everything() {
    if (!shared_) {
        call().cuMemPoolDestroy(pool_);
    } else if (threshold_before_) {
        call().cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &*threshold_before_);
    }
}

std::uint64_t DriverPool::attribute(CUmemPool_attribute which) const {
    std::uint64_t value = 0;
    if (!closed()) call().cuMemPoolGetAttribute(pool_, which, &value);
    return value;
}

}  // namespace vramkit::resources
