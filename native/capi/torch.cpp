// The functions that PyTorch's CUDAPluggableAllocator calls.
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fork.h"
#include "capi/errors.h"
#include "capi/handle.h"
#include "capi/torch_errors.h"
#include "pool/instances.h"

namespace {

using namespace vramkit;
using namespace vramkit::capi;

constexpr int kMostDevices = 64;

// Pools that PyTorch was told to use, as handles of our own: PyTorch may free blocks long after the
// caller has dropped the pool.
struct Chosen {
    std::mutex lock;
    std::vector<std::unique_ptr<Handle>> all;
    std::array<std::atomic<Handle*>, kMostDevices> now{};             // null: the process-wide one
    std::array<std::atomic<std::uint64_t>, kMostDevices> failures{};  // for lack of memory
};

bool is_known(int device) { return device >= 0 && device < kMostDevices; }

// Never destroyed: tensors may be freed while the process exits.
Chosen& chosen() {
    static Chosen& made = *std::make_unique<Chosen>().release();
    return made;
}

// The pool of a device; null and the thread's last error if there is none.
Handle* pool_of(int device) {
    if (is_known(device)) {
        Handle* const told = chosen().now[static_cast<std::size_t>(device)].load();
        if (told != nullptr) return told;
    }
    return default_pool(device);
}

bool free_block(const Handle& pool, void* block, Failure& why) {
    return pool.engine->free(address_of(block), std::nullopt, std::nullopt, why);
}

// Frees a block of a pool that was chosen earlier, or of the process-wide pool.
bool free_elsewhere(void* block, int device) {
    Failure why;
    Chosen& pools = chosen();
    {
        const std::lock_guard guard(pools.lock);
        for (const auto& pool : pools.all) {
            if (pool->ordinal == device && free_block(*pool, block, why)) return true;
        }
    }
    const Handle* const shared = pool::default_pool_if_open(device);
    return shared != nullptr && free_block(*shared, block, why);
}

vramkit_status allocate_block(ptrdiff_t size, int device, void* stream, std::uint64_t& address) {
    if (size < 0) {
        return fail(VRAMKIT_BAD_VALUE, "size is " + std::to_string(size) + "; it may be 0 or more");
    }
    const Handle* const pool = pool_of(device);
    if (pool == nullptr) return vramkit_last_status();
    Failure why;
    address = allocate(*pool, static_cast<std::uint64_t>(size), stream, Life::durable, true, why);
    return address != 0 ? VRAMKIT_OK : fail(why);
}

}  // namespace

extern "C" {

void* vramkit_torch_segment(ptrdiff_t size, int device, void* stream) {
    std::uint64_t address = 0;
    if (size != 0) guarded([&] { return allocate_block(size, device, stream, address); });
    return block_at(address);
}

void* vramkit_torch_malloc(ptrdiff_t size, int device, void* stream) {
    if (size == 0) return nullptr;
    std::uint64_t address = 0;
    const vramkit_status status =
        guarded([&] { return allocate_block(size, device, stream, address); });
    if (status == VRAMKIT_OUT_OF_MEMORY) {
        if (is_known(device)) ++chosen().failures[static_cast<std::size_t>(device)];
        // Programs recognise this error by these words.
        throw_out_of_memory(std::string("CUDA out of memory. ") + vramkit_last_error());
    }
    if (status != VRAMKIT_OK) throw std::runtime_error(vramkit_last_error());
    return block_at(address);
}

void vramkit_torch_free(void* block, ptrdiff_t, int device, void*) {
    guarded([&] {
        if (block == nullptr) return VRAMKIT_OK;
        const Handle* const pool = pool_of(device);
        if (pool == nullptr) return vramkit_last_status();
        Failure why;
        if (free_block(*pool, block, why)) return VRAMKIT_OK;
        return why.kind != Failure::Kind::forked && free_elsewhere(block, device) ? VRAMKIT_OK
                                                                                  : fail(why);
    });
}

void vramkit_torch_record_stream(void* block, void* stream) {
    guarded([&] {
        if (block == nullptr) return VRAMKIT_OK;
        Failure why = Failure::bad_value("the pointer is not of a pool that serves PyTorch");
        const auto used = [&](const Handle& pool) {
            StreamRef ref;
            return !pool.engine->forked() && resolve(pool, stream, Life::durable, ref, why) &&
                   pool.engine->also_used_on(address_of(block), ref, why);
        };
        Chosen& pools = chosen();
        {
            const std::lock_guard guard(pools.lock);
            for (const auto& pool : pools.all) {
                if (used(*pool)) return VRAMKIT_OK;
            }
        }
        // PyTorch does not pass the device.
        for (int device = 0; device < kMostDevices; ++device) {
            const Handle* const pool = pool::default_pool_if_open(device);
            if (pool != nullptr && used(*pool)) return VRAMKIT_OK;
        }
        return fail(why);
    });
}

void vramkit_torch_empty_cache(void) {
    guarded([&] {
        if (fork_count() > 0) return VRAMKIT_OK;
        for (int device = 0; device < kMostDevices; ++device) {
            const Handle* const shared = pool::default_pool_if_open(device);
            if (shared != nullptr) shared->engine->trim(false);
        }
        Chosen& pools = chosen();
        const std::lock_guard guard(pools.lock);
        for (const auto& pool : pools.all) pool->engine->trim(false);
        return VRAMKIT_OK;
    });
}

vramkit_status vramkit_torch_use(int device, vramkit_pool* given) {
    return guarded([&] {
        const Handle* const pool = handle_of(given);
        if (!is_known(device)) {
            return fail(VRAMKIT_BAD_VALUE, "device is " + std::to_string(device) +
                                               "; it may be 0 to " +
                                               std::to_string(kMostDevices - 1));
        }
        if (pool != nullptr && pool->ordinal != device) {
            return fail(VRAMKIT_BAD_VALUE, "the pool is of device " +
                                               std::to_string(pool->ordinal) + ", not of " +
                                               std::to_string(device));
        }
        Chosen& pools = chosen();
        const std::lock_guard guard(pools.lock);
        Handle* own = nullptr;
        for (const auto& known : pools.all) {
            if (pool != nullptr && known->engine == pool->engine) own = known.get();
        }
        if (pool != nullptr && own == nullptr) {
            pools.all.push_back(std::make_unique<Handle>(*pool));
            own = pools.all.back().get();
        }
        pools.now[static_cast<std::size_t>(device)].store(own);
        return VRAMKIT_OK;
    });
}

int vramkit_torch_is_served(int device) {
    if (!is_known(device)) return 0;
    return chosen().now[static_cast<std::size_t>(device)].load() != nullptr ||
           pool::default_pool_if_open(device) != nullptr;
}

uint64_t vramkit_torch_failures(int device) {
    return is_known(device) ? chosen().failures[static_cast<std::size_t>(device)].load() : 0;
}

}  // extern "C"
