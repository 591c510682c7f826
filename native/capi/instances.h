// The process-wide pools: one a device of a driver, shared by C, Python and the frameworks.
#pragma once

#include <memory>

#include "capi/handle.h"

namespace vramkit::capi {

// Made on first use, and again after it was closed; whoever comes first makes it. Handles stay
// valid for good: of a closed pool too, whose engine says that it is closed. Null and the reason on
// failure.
vramkit_pool* process_wide_pool(const std::shared_ptr<Driver>& driver, int ordinal,
                                pool::Failure& why);

// That of the driver which the environment names. Null and the thread's last error on failure.
// Without a lock where it is open.
vramkit_pool* default_pool(int ordinal);
// Null where nobody has asked for it yet, or it was closed.
vramkit_pool* default_pool_if_open(int ordinal);

}  // namespace vramkit::capi
