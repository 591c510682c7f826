// The functions that CuPy's CFunctionAllocator calls.
#include <optional>
#include <string>

#include "capi/errors.h"
#include "capi/handle.h"
#include "pool/instances.h"

// CuPy passes no stream: its own C function returns the calling thread's current one.
struct vramkit_cupy {
    vramkit::pool::Handle* pool = nullptr;  // null: the process-wide one
    intptr_t (*current_stream)(void) = nullptr;
};

namespace {

using namespace vramkit;
using namespace vramkit::capi;

// Null and the thread's last error if the pool is of another device, or cannot be opened.
const Handle* pool_of(const vramkit_cupy& made, int device) {
    if (made.pool == nullptr) return default_pool(device);
    if (made.pool->ordinal == device) return made.pool;
    fail(VRAMKIT_BAD_VALUE, "the pool is of device " + std::to_string(made.pool->ordinal) +
                                ", and CuPy's current device is " + std::to_string(device));
    return nullptr;
}

}  // namespace

extern "C" {

vramkit_cupy* vramkit_cupy_create(vramkit_pool* pool, intptr_t (*current_stream)(void)) {
    return guarded_pointer([&]() -> vramkit_cupy* {
        if (current_stream == nullptr) {
            fail(VRAMKIT_BAD_VALUE,
                 "current_stream is NULL; it must be a function that tells the current stream");
            return nullptr;
        }
        return std::make_unique<vramkit_cupy>(vramkit_cupy{handle_of(pool), current_stream})
            .release();
    });
}

void vramkit_cupy_destroy(vramkit_cupy* made) { std::unique_ptr<vramkit_cupy>(made).reset(); }

void* vramkit_cupy_malloc(void* param, size_t size, int device) {
    return guarded_pointer([&]() -> void* {
        const auto& made = *static_cast<const vramkit_cupy*>(param);
        const Handle* const pool = pool_of(made, device);
        if (pool == nullptr) return nullptr;
        Failure why;
        void* const stream = reinterpret_cast<void*>(made.current_stream());
        std::uint64_t address = allocate(*pool, size, stream, Life::unknown, true, why);
        // CuPy destroys streams without notice, so some memory may need a device sync. Like CuPy's
        // own pool, wait for the card then. Captures survive that.
        if (address == 0 && why.kind == Failure::Kind::out_of_memory &&
            pool->engine->trim(true) > 0) {
            why = {};
            address = allocate(*pool, size, stream, Life::unknown, true, why);
        }
        if (address == 0) fail(why);
        return block_at(address);
    });
}

void vramkit_cupy_free(void* param, void* block, int device) {
    guarded([&] {
        const auto& made = *static_cast<const vramkit_cupy*>(param);
        if (block == nullptr) return VRAMKIT_OK;
        const Handle* const pool = pool_of(made, device);
        if (pool == nullptr) return vramkit_last_status();
        pool::Pool& engine = *pool->engine;
        pool::Pool::Full full;
        if (engine.free_cached(address_of(block), 0, nullptr, full) == pool::Pool::Freed::yes) {
            if (full.cache != nullptr) engine.spill(full);
            return VRAMKIT_OK;
        }
        Failure why;
        if (engine.forked()) return fail(Failure::forked("the pool"));
        // The current stream lives, and usually is that of the block.
        StreamRef current;
        void* const stream = reinterpret_cast<void*>(made.current_stream());
        const bool done = resolve(*pool, stream, Life::unknown, current, why)
                              ? engine.free_beside(address_of(block), current, why)
                              : engine.free(address_of(block), std::nullopt, std::nullopt, why);
        return done ? VRAMKIT_OK : fail(why);
    });
}

}  // extern "C"
