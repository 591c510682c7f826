// Drivers that the whole process shares: a library that is opened twice is one driver. Pools know
// their driver by its table, and hear of closing streams and resets whoever tells them.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "driver/driver.h"

namespace vramkit {

struct SharedDriver {
    std::shared_ptr<Driver> driver;
    bool first = false;  // nobody had it before
};

using Shared = std::variant<SharedDriver, OpenError>;

Shared share_cuda();
Shared share_path(const std::string& path);

}  // namespace vramkit
