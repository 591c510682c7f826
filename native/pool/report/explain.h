// The message of an out-of-memory error: what was asked for, where the memory is, what would help.
#pragma once

#include <cstdint>
#include <string>

#include "base/failure.h"
#include "pool/parts.h"

namespace vramkit::pool {

// With the pool's lock. `largest` as for free_memory().
std::string explain_shortage(const Parts& parts, std::uint64_t bytes, const Failure& cause,
                             std::uint64_t largest);

}  // namespace vramkit::pool
