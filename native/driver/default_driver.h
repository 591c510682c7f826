// The driver that the environment's VRAMKIT_DRIVER names: the rules of vramkit.driver.open().
#pragma once

#include "driver/driver.h"

namespace vramkit {

// Opened, initialised, and the same each time. After a failure the next call tries again.
Driver::Opened default_driver();

}  // namespace vramkit
