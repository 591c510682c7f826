// The C functions of a pool.
#include <optional>

#include "base/fork.h"
#include "base/listeners.h"
#include "capi/errors.h"
#include "capi/handle.h"
#include "capi/options.h"
#include "driver/default_driver.h"
#include "pool/instances.h"

namespace {

using namespace vramkit;
using namespace vramkit::capi;

constexpr const char* kNoPool = "the pool is NULL: the call that should have made it failed";

void* allocated(vramkit_pool* pool, size_t bytes, void* stream, bool may_wait) {
    return guarded_pointer([&]() -> void* {
        if (pool == nullptr) {
            fail(VRAMKIT_BAD_VALUE, kNoPool);
            return nullptr;
        }
        Failure why;
        const std::uint64_t address =
            allocate(*handle_of(pool), bytes, stream, Life::unknown, may_wait, why);
        if (address == 0) fail(why);
        return block_at(address);
    });
}

// Slow calls take locks, which in a forked child may be held by threads that do not exist there.
template <class Body>
vramkit_status in_parent(vramkit_pool* pool, Body body) noexcept {
    return guarded([&] {
        if (pool == nullptr) return fail(VRAMKIT_BAD_VALUE, kNoPool);
        pool::Pool& engine = *handle_of(pool)->engine;
        if (engine.forked()) return fail(Failure::forked("the pool"));
        return body(engine);
    });
}

vramkit_status give_back(vramkit_pool* pool, bool all, uint64_t* released) {
    return in_parent(pool, [&](pool::Pool& engine) {
        if (engine.closed()) return fail(VRAMKIT_CLOSED, "the pool is closed");
        const std::uint64_t bytes = engine.trim(all);
        if (all) engine.reset_stats();
        if (released != nullptr) *released = bytes;
        return VRAMKIT_OK;
    });
}

vramkit_status close(vramkit_pool* pool) {
    return in_parent(pool, [&](pool::Pool& engine) {
        Failure why;
        return engine.close(why) ? VRAMKIT_OK : fail(why);
    });
}

}  // namespace

extern "C" {

const char* vramkit_version(void) { return VRAMKIT_VERSION; }

vramkit_pool* vramkit_pool_create(const vramkit_pool_options* options) {
    return guarded_pointer([&]() -> vramkit_pool* {
        const std::optional<vramkit_pool_options> known = checked(options);
        if (!known) return nullptr;
        Driver::Opened driver = default_driver();
        if (const auto* error = std::get_if<OpenError>(&driver)) {
            fail(*error);
            return nullptr;
        }
        Failure why;
        auto made = pool::open_pool(std::get<std::shared_ptr<Driver>>(driver), known->device,
                                    config_of(*known), why);
        if (made == nullptr) fail(why);
        return opaque(made.release());
    });
}

vramkit_pool* vramkit_pool_instance(int device) {
    return guarded_pointer([&] { return opaque(default_pool(device)); });
}

vramkit_status vramkit_pool_close(vramkit_pool* pool) { return close(pool); }

vramkit_status vramkit_pool_destroy(vramkit_pool* pool) {
    if (pool == nullptr) return VRAMKIT_OK;
    if (handle_of(pool)->process_wide) {
        return guarded([] {
            return fail(VRAMKIT_BAD_VALUE,
                        "the process-wide pool is everybody's: vramkit_pool_close it, if you must");
        });
    }
    const vramkit_status status = close(pool);
    if (status == VRAMKIT_OK) std::unique_ptr<Handle>(handle_of(pool)).reset();
    return status;
}

void* vramkit_malloc(vramkit_pool* pool, size_t bytes, void* stream) {
    return allocated(pool, bytes, stream, true);
}

void* vramkit_try_malloc(vramkit_pool* pool, size_t bytes, void* stream) {
    return allocated(pool, bytes, stream, false);
}

vramkit_status vramkit_free(vramkit_pool* pool, void* block) {
    return guarded([&] {
        if (block == nullptr) return VRAMKIT_OK;
        if (pool == nullptr) return fail(VRAMKIT_BAD_VALUE, kNoPool);
        Failure why;
        const bool done =
            handle_of(pool)->engine->free(address_of(block), std::nullopt, std::nullopt, why);
        return done ? VRAMKIT_OK : fail(why);
    });
}

vramkit_status vramkit_free_on(vramkit_pool* pool, void* block, void* stream) {
    if (block == nullptr) return VRAMKIT_OK;
    return in_parent(pool, [&](pool::Pool& engine) {
        Failure why;
        StreamRef ref;
        const bool done = resolve(*handle_of(pool), stream, Life::unknown, ref, why) &&
                          engine.free(address_of(block), std::nullopt, ref, why);
        return done ? VRAMKIT_OK : fail(why);
    });
}

vramkit_status vramkit_also_used_on(vramkit_pool* pool, void* block, void* stream) {
    return in_parent(pool, [&](pool::Pool& engine) {
        Failure why;
        StreamRef ref;
        const bool done = resolve(*handle_of(pool), stream, Life::unknown, ref, why) &&
                          engine.also_used_on(address_of(block), ref, why);
        return done ? VRAMKIT_OK : fail(why);
    });
}

vramkit_status vramkit_preallocate(vramkit_pool* pool, size_t bytes, size_t count) {
    return in_parent(pool, [&](pool::Pool& engine) {
        Failure why;
        return engine.preallocate(bytes, count, why) ? VRAMKIT_OK : fail(why);
    });
}

vramkit_status vramkit_trim(vramkit_pool* pool, uint64_t* released) {
    return give_back(pool, false, released);
}

vramkit_status vramkit_release_all(vramkit_pool* pool, uint64_t* released) {
    return give_back(pool, true, released);
}

vramkit_status vramkit_defragment(vramkit_pool* pool, uint64_t* moved) {
    return in_parent(pool, [&](pool::Pool& engine) {
        Failure why;
        const std::uint64_t bytes = engine.defragment(why);
        if (why.kind != Failure::Kind::none) return fail(why);
        if (moved != nullptr) *moved = bytes;
        return VRAMKIT_OK;
    });
}

vramkit_status vramkit_step(vramkit_pool* pool) {
    return in_parent(pool, [&](pool::Pool& engine) {
        if (engine.closed()) return fail(VRAMKIT_CLOSED, "the pool is closed");
        engine.step();
        return VRAMKIT_OK;
    });
}

vramkit_status vramkit_stream_closing(void* stream) {
    return guarded([&] {
        const auto handle = static_cast<CUstream>(stream);
        if (is_legacy(handle) || handle == VRAMKIT_STREAM_PER_THREAD) {
            return fail(VRAMKIT_BAD_VALUE,
                        "a default stream cannot be destroyed: no pool needs to hear of it");
        }
        if (fork_count() > 0) {
            return fail(VRAMKIT_FORKED, "the stream belongs to the parent process");
        }
        const Driver::Opened opened = default_driver();
        if (const auto* error = std::get_if<OpenError>(&opened)) return fail(*error);
        const DriverTable& call = std::get<std::shared_ptr<Driver>>(opened)->call();
        unsigned long long id = 0;
        const CUresult result = call.cuStreamGetId(handle, &id);
        if (result != CUDA_SUCCESS) {
            return fail(Failure::of_driver(result, "cuStreamGetId"));
        }
        announce_stream_closing(call, id, handle);
        return VRAMKIT_OK;
    });
}

vramkit_status vramkit_pool_stats(vramkit_pool* pool, vramkit_stats* stats) {
    return in_parent(pool, [&](pool::Pool& engine) { return report(engine.stats(), stats); });
}

vramkit_status vramkit_reset_stats(vramkit_pool* pool) {
    return in_parent(pool, [](pool::Pool& engine) {
        engine.reset_stats();
        return VRAMKIT_OK;
    });
}

}  // extern "C"
