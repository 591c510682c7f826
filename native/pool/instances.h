// The process-wide pools: one for each device of a driver, shared by C, Python and the frameworks.
#pragma once

#include <memory>

#include "pool/handle.h"

namespace vramkit::pool {

// Made on first use, and again after it was closed. Handles stay valid until the process ends, also
// those of a closed pool: its engine reports that it is closed. Null and the reason on failure.
Handle* process_wide_pool(const std::shared_ptr<Driver>& driver, int ordinal, Failure& why);

// The pool of the driver that VRAMKIT_DRIVER names. Takes no lock if it is open.
Handle* default_pool(int ordinal, Failure& why);
// Null if it was never asked for, or is closed.
Handle* default_pool_if_open(int ordinal);

}  // namespace vramkit::pool
