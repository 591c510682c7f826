// Converts settings and statistics between the C structs and the engine's.
#pragma once

#include <optional>

#include "include/vramkit.h"
#include "pool/config.h"

namespace vramkit::capi {

// The given options over the defaults; nullopt and the thread's last error if one is wrong.
std::optional<vramkit_pool_options> checked(const vramkit_pool_options* given);
pool::Config config_of(const vramkit_pool_options& options);
// Fills as much as the caller's struct has room for.
vramkit_status report(const pool::Stats& now, vramkit_stats* stats);

}  // namespace vramkit::capi
