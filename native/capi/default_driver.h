// The driver that the environment's VRAMKIT_DRIVER names: the rules of vramkit.driver.open().
#pragma once

#include <memory>

#include "driver/driver.h"

namespace vramkit::capi {

// Opened, initialised, and the same each time. Null and the thread's last error on failure; the
// next call tries again.
std::shared_ptr<Driver> default_driver();

}  // namespace vramkit::capi
