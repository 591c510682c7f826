// The process that owns the driver, and how time passes on it.
#include "bindings/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "bindings/errors.h"
#include "sim/control.h"

namespace vramkit {

Session::Session(std::shared_ptr<Driver> driver)
    : driver_(std::move(driver)), simulated_(driver_->simulated()) {}

void Session::refuse_forked(const char* what) {
    raise_closed(std::string(what) +
                 " belongs to the parent process: a forked child cannot use it; "
                 "start children by \"spawn\"");
}

bool Session::waits_in_real_time() const {
    if (!simulated_) return true;
    const uint64_t now = epoch() + 1;
    const uint64_t known = wall_clock_.load(std::memory_order_relaxed);
    if (known >> 1 == now) return (known & 1) != 0;
    const bool wall = has_wall_clock();
    wall_clock_.store(now << 1 | (wall ? 1 : 0), std::memory_order_relaxed);
    return wall;
}

bool Session::has_wall_clock() const {
    const auto settings = reinterpret_cast<decltype(&simSettings)>(driver_->symbol("simSettings"));
    if (settings == nullptr) return false;
    std::string text(4096, '\0');
    text.resize(std::min(settings(text.data(), text.size()), text.size()));
    return text.find("\"clock\":\"wall\"") != std::string::npos;
}

}  // namespace vramkit
