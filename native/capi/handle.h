// What the opaque pointers of the C interface point to.
#pragma once

#include "include/vramkit.h"
#include "pool/handle.h"

namespace vramkit::capi {

using pool::allocate;
using pool::Handle;
using pool::Life;
using pool::resolve;

// C never looks into a vramkit_pool: the pointer is that of a Handle.
inline Handle* handle_of(vramkit_pool* pool) { return reinterpret_cast<Handle*>(pool); }
inline vramkit_pool* opaque(Handle* handle) { return reinterpret_cast<vramkit_pool*>(handle); }

// The process-wide pool of a device. Null and the thread's last error on failure.
Handle* default_pool(int device);

inline std::uint64_t address_of(const void* block) {
    return reinterpret_cast<std::uintptr_t>(block);
}
inline void* block_at(std::uint64_t address) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

}  // namespace vramkit::capi
