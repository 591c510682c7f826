// Opens pools, and asks the driver for streams.
#include "capi/handle.h"

#include "pool/scopes.h"
#include "pool/threads.h"

namespace vramkit::capi {

using pool::Failure;

std::unique_ptr<vramkit_pool> open_pool(const std::shared_ptr<Driver>& driver, int ordinal,
                                        const pool::Config& config, Failure& why) {
    if (pool::fork_count() > 0) {
        why.kind = Failure::Kind::forked;
        why.message = "CUDA cannot be used in a forked child: make pools in a process of their own";
        return nullptr;
    }
    const DriverTable& call = driver->call();
    CUdevice device = 0;
    auto made = std::make_unique<vramkit_pool>();
    made->driver = driver;
    made->ordinal = ordinal;
    const auto refused = [&](CUresult result, const char* symbol) {
        if (result == CUDA_SUCCESS) return false;
        why = Failure::of_driver(result, symbol);
        return true;
    };
    if (refused(call.cuDeviceGet(&device, ordinal), "cuDeviceGet")) return nullptr;
    if (refused(call.cuDevicePrimaryCtxRetain(&made->context, device),
                "cuDevicePrimaryCtxRetain")) {
        return nullptr;
    }
    made->engine = pool::Pool::open(driver, device, made->context, config, why);
    if (made->engine == nullptr) return nullptr;
    return made;
}

bool resolve_in_context(const vramkit_pool& pool, pool::StreamRef& stream, Failure& why) {
    const pool::SlowPathScope scope(pool.driver->call(), pool.context);
    return !pool::failed(pool::identify(pool.driver->call(), stream), "cuStreamGetId", why);
}

}  // namespace vramkit::capi
