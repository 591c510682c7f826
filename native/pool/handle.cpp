// Opens pools, and identifies streams.
#include "pool/handle.h"

#include "base/fork.h"
#include "base/scopes.h"

namespace vramkit::pool {

std::unique_ptr<Handle> open_pool(const std::shared_ptr<Driver>& driver, int ordinal,
                                  const Config& config, Failure& why) {
    if (fork_count() > 0) {
        why = Failure::in_forked_child(
            "CUDA cannot be used in a forked child: make pools in a process of their own");
        return nullptr;
    }
    const DriverTable& call = driver->call();
    CUdevice device = 0;
    auto made = std::make_unique<Handle>();
    made->driver = driver;
    made->ordinal = ordinal;
    if (failed(call.cuDeviceGet(&device, ordinal), "cuDeviceGet", why)) return nullptr;
    if (failed(call.cuDevicePrimaryCtxRetain(&made->context, device), "cuDevicePrimaryCtxRetain",
               why)) {
        return nullptr;
    }
    made->engine = Pool::open(driver, device, made->context, config, why);
    if (made->engine == nullptr) return nullptr;
    return made;
}

bool resolve_in_context(const Handle& pool, StreamRef& stream, Failure& why) {
    const SlowPathScope scope(pool.driver->call(), pool.context);
    return !failed(identify(pool.driver->call(), stream), "cuStreamGetId", why);
}

}  // namespace vramkit::pool
