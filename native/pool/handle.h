// A pool with what its callers need: the driver, the device, and the context that it keeps alive.
// The C interface, the Python extension and the frameworks all hold one of these.
#pragma once

#include <memory>

#include "base/stream_ref.h"
#include "driver/driver.h"
#include "pool/pool.h"

namespace vramkit::pool {

// A value: copies are handles of the same pool.
struct Handle {
    std::shared_ptr<Driver> driver;
    int ordinal = 0;
    CUcontext context = nullptr;
    std::shared_ptr<Pool> engine;
    bool process_wide = false;  // owned by the registry of instances, which never drops it
};

// A new pool on the primary context of the device. The context is retained until the process ends:
// releasing it can wait for the GPU. Null and the reason on failure.
std::unique_ptr<Handle> open_pool(const std::shared_ptr<Driver>& driver, int ordinal,
                                  const Config& config, Failure& why);

// How long a stream of a raw handle lives.
enum class Life : bool {
    unknown,  // it may be destroyed without notice to the pools
    durable,  // as long as the process, or pools are told before it is destroyed
};

// Asks the driver with the pool's context current.
bool resolve_in_context(const Handle& pool, StreamRef& stream, Failure& why);

// The stream as the engine knows it; false and the reason if the driver does not know it. One
// cuStreamGetId and one cuStreamIsCapturing, about 30 ns on a card; no call for the legacy default
// stream.
inline bool resolve(const Handle& pool, void* handle, Life life, StreamRef& stream, Failure& why) {
    stream.handle = static_cast<CUstream>(handle);
    stream.durable = life == Life::durable;
    // Which stream the per-thread default stream is depends on the current context.
    if (stream.handle != VRAMKIT_STREAM_PER_THREAD &&
        identify(pool.driver->call(), stream) == CUDA_SUCCESS) {
        return true;
    }
    return resolve_in_context(pool, stream, why);
}

// 0 and the reason on failure.
inline std::uint64_t allocate(const Handle& pool, std::uint64_t bytes, void* stream, Life life,
                              bool may_wait, Failure& why) {
    StreamRef ref;
    if (pool.engine->forked()) {
        why = Failure::forked("the pool");
        return 0;
    }
    return resolve(pool, stream, life, ref, why) ? pool.engine->malloc(bytes, ref, may_wait, why)
                                                 : 0;
}

}  // namespace vramkit::pool
