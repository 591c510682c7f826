// What the C functions say of failures: a status and a text, kept for each thread.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/failure.h"
#include "driver/driver.h"
#include "include/vramkit.h"

namespace vramkit::capi {

// Notes them for vramkit_last_status and vramkit_last_error; the status. Never throws.
vramkit_status fail(vramkit_status status, std::string text) noexcept;
vramkit_status fail(const Failure& why) noexcept;
vramkit_status fail(const OpenError& why) noexcept;
// For a failure that text cannot be made for.
vramkit_status fail_without_host_memory() noexcept;

// For an exception that nothing here throws.
vramkit_status fail_unexpectedly(const char* what) noexcept;

// As a sentence: the pool's own, or the driver's call with the meaning of its result.
std::string words(const Failure& why);

// Runs what a C function does; an exception becomes the thread's last error.
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

// The same for one that returns a pointer: null.
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
