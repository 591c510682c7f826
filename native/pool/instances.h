// The process-wide pools: one a device of a driver, shared by C, Python and the frameworks.
#pragma once

#include <memory>

#include "pool/handle.h"

namespace vramkit::pool {

// Made on first use, and again after it was closed; whoever comes first makes it. Handles stay
// valid for good: of a closed pool too, whose engine says that it is closed. Null and the reason on
// failure.
Handle* process_wide_pool(const std::shared_ptr<Driver>& driver, int ordinal, Failure& why);

// That of the driver which the environment names. Without a lock where it is open.
Handle* default_pool(int ordinal, Failure& why);
// Null where nobody has asked for it yet, or it was closed.
Handle* default_pool_if_open(int ordinal);

}  // namespace vramkit::pool
