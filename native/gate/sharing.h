// Loads the library that keeps the program's memory, where the program shares its card.
#pragma once

#include "gate/added_hooks.h"
#include "gate/find_driver.h"

namespace vramkit::gate {

// Where VRAMKIT_SHARE is set. Any thread may call, and again: when it returns, added_hooks() has
// its final value. Without the library the program runs as it would without sharing.
void start_sharing(const Found& driver);
AddedHooks added_hooks();

}  // namespace vramkit::gate
