// The calling thread's last error.
#include "capi/errors.h"

#include "driver/driver.h"

namespace vramkit::capi {
namespace {

using Kind = Failure::Kind;

struct LastError {
    vramkit_status status = VRAMKIT_OK;
    const char* fixed = nullptr;  // returned instead of the text, if that could not be stored
    bool text_is_gone = false;    // destroyed, but other thread-local objects may still call us
};
constinit thread_local LastError last;

struct Text {
    std::string text;
    ~Text() {
        last.fixed = "the thread ends, and keeps no reasons any more";
        last.text_is_gone = true;
    }
};
thread_local Text last_text;

vramkit_status status_of(Kind kind) {
    switch (kind) {
        case Kind::bad_value:
            return VRAMKIT_BAD_VALUE;
        case Kind::closed:
            return VRAMKIT_CLOSED;
        case Kind::forked:
            return VRAMKIT_FORKED;
        case Kind::no_driver:
            return VRAMKIT_NO_DRIVER;
        case Kind::out_of_memory:
            return VRAMKIT_OUT_OF_MEMORY;
        default:
            return VRAMKIT_DRIVER;
    }
}

}  // namespace

vramkit_status fail(vramkit_status status, std::string text) noexcept {
    last.status = status;
    if (last.text_is_gone) return status;
    last_text.text = std::move(text);
    last.fixed = nullptr;
    return status;
}

vramkit_status fail_without_host_memory() noexcept {
    last.status = VRAMKIT_OUT_OF_MEMORY;
    last.fixed = "the host is out of memory";
    return last.status;
}

vramkit_status fail(const Failure& why) noexcept {
    try {
        return fail(status_of(why.kind), words(why));
    } catch (const std::bad_alloc&) {
        return fail_without_host_memory();
    }
}

vramkit_status fail(const OpenError& why) noexcept {
    try {
        return fail(why.bad_setting ? VRAMKIT_BAD_VALUE : VRAMKIT_NO_DRIVER, why.message);
    } catch (const std::bad_alloc&) {
        return fail_without_host_memory();
    }
}

vramkit_status fail_unexpectedly(const char* what) noexcept {
    try {
        return fail(VRAMKIT_DRIVER, what);
    } catch (const std::bad_alloc&) {
        return fail_without_host_memory();
    }
}

std::string words(const Failure& why) {
    if (!why.message.empty()) return why.message;
    return std::string(why.call) + ": " + error_name(why.code) + ", " +
           std::string(error_meaning(why.code));
}

}  // namespace vramkit::capi

extern "C" {

vramkit_status vramkit_last_status(void) { return vramkit::capi::last.status; }

const char* vramkit_last_error(void) {
    const auto& last = vramkit::capi::last;
    return last.fixed != nullptr ? last.fixed : vramkit::capi::last_text.text.c_str();
}

}  // extern "C"
