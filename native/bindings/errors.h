// Where a driver's result becomes a Python exception: the classes of vramkit.driver.errors.
#pragma once

#include <string>

#include "driver/driver.h"

namespace vramkit {

// Raises DriverError (OutOfMemoryError for code 2) unless the result is success. `call` is the
// symbol that returned it.
void check(const Driver& driver, CUresult result, const char* call);

// Raises OutOfMemoryError with a text of our own.
[[noreturn]] void raise_out_of_memory(const char* call, const std::string& message);

// Raises ClosedError.
[[noreturn]] void raise_closed(const std::string& message);

}  // namespace vramkit
