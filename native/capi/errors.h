// Errors of the C functions: a status and a text, kept for each thread.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/failure.h"
#include "driver/driver.h"
#include "include/vramkit.h"

namespace vramkit::capi {

// Stores status and text for vramkit_last_status and vramkit_last_error, and returns the status.
// Never throws.
vramkit_status fail(vramkit_status status, std::string text) noexcept;
vramkit_status fail(const Failure& why) noexcept;
vramkit_status fail(const OpenError& why) noexcept;
// For an error whose text cannot be allocated.
vramkit_status fail_without_host_memory() noexcept;

// For an exception that is not expected here.
vramkit_status fail_unexpectedly(const char* what) noexcept;

// The failure as a sentence: its own message, or the driver call with the meaning of its result.
std::string words(const Failure& why);

// Runs the body of a C function; an exception becomes the thread's last error.
template <class Body>
vramkit_status guarded(Body body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return fail_without_host_memory();
    } catch (const std::exception& error) {
        return fail_unexpectedly(error.what());
    } catch (...) {
        return fail_unexpectedly("an exception without a text");
    }
}

// The same for a function that returns a pointer; null on an exception.
template <class Body>
auto guarded_pointer(Body body) noexcept -> decltype(body()) {
    decltype(body()) result = nullptr;
    guarded([&] {
        result = body();
        return VRAMKIT_OK;
    });
    return result;
}

}  // namespace vramkit::capi
