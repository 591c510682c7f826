// What a vramkit_pool* points at: the engine with what C callers need around it.
#pragma once

#include <memory>

#include "driver/driver.h"
#include "include/vramkit.h"
#include "pool/pool.h"
#include "pool/streams.h"

// A value: copies are handles of the same engine.
struct vramkit_pool {
    std::shared_ptr<vramkit::Driver> driver;
    int ordinal = 0;
    CUcontext context = nullptr;
    std::shared_ptr<vramkit::pool::Pool> engine;
    bool process_wide = false;  // of the registry of instances, which never lets go of it
};

namespace vramkit::capi {

// A new pool on the primary context of the device. The context is retained, and kept until the
// process ends: to give it back can wait for the GPU. Null and the reason on failure.
std::unique_ptr<vramkit_pool> open_pool(const std::shared_ptr<Driver>& driver, int ordinal,
                                        const pool::Config& config, pool::Failure& why);

// How long a stream of a raw handle lives.
enum class Life : bool {
    unknown,  // until somebody destroys it, of which no pool need hear
    durable,  // as long as the process, or until pools are told
};

// Asks with the pool's context current.
bool resolve_in_context(const vramkit_pool& pool, pool::StreamRef& stream, pool::Failure& why);

// The stream as the engine knows it; false and the reason where the driver does not know it. One
// cuStreamGetId and one cuStreamIsCapturing, about 30 ns on a card; none for the legacy default
// stream.
inline bool resolve(const vramkit_pool& pool, void* handle, Life life, pool::StreamRef& stream,
                    pool::Failure& why) {
    stream.handle = static_cast<CUstream>(handle);
    stream.told = life == Life::durable;
    // What the per-thread default stream is depends on the current context.
    if (stream.handle != VRAMKIT_STREAM_PER_THREAD &&
        pool::identify(pool.driver->call(), stream) == CUDA_SUCCESS) {
        return true;
    }
    return resolve_in_context(pool, stream, why);
}

// 0 and the reason on failure.
inline std::uint64_t allocate(const vramkit_pool& pool, std::uint64_t bytes, void* stream,
                              Life life, bool may_wait, pool::Failure& why) {
    pool::StreamRef ref;
    if (pool.engine->forked()) {
        why = pool::Failure::forked();
        return 0;
    }
    return resolve(pool, stream, life, ref, why) ? pool.engine->malloc(bytes, ref, may_wait, why)
                                                 : 0;
}

inline std::uint64_t address_of(const void* block) {
    return reinterpret_cast<std::uintptr_t>(block);
}
inline void* block_at(std::uint64_t address) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

}  // namespace vramkit::capi
