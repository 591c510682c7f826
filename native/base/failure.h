// Why a request failed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "driver/table.h"

namespace vramkit {

struct Failure {
    enum class Kind : std::uint8_t {
        none,
        bad_value,
        closed,
        forked,
        no_driver,
        out_of_memory,
        driver
    };
    Kind kind = Kind::none;
    CUresult code = CUDA_SUCCESS;
    std::string_view call;  // the driver call that failed, if one did; a literal
    std::string message;    // for the user

    static Failure bad_value(std::string message) {
        return refused(CUDA_ERROR_INVALID_VALUE, std::move(message));
    }
    // A request that the driver would answer with this code, without asking it.
    static Failure refused(CUresult code, std::string message) {
        return {Kind::bad_value, code, "", std::move(message)};
    }
    // `what`: "the pool".
    static Failure closed(std::string_view what);
    static Failure forked(std::string_view what);
    static Failure in_forked_child(std::string message) {
        return {Kind::forked, CUDA_SUCCESS, "", std::move(message)};
    }
    static Failure no_driver(std::string message) {
        return {Kind::no_driver, CUDA_SUCCESS, "", std::move(message)};
    }
    static Failure out_of_memory() {
        return {Kind::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY, "", ""};
    }
    static Failure of_driver(CUresult code, const char* call) {
        return {code == CUDA_ERROR_OUT_OF_MEMORY ? Kind::out_of_memory : Kind::driver, code, call,
                ""};
    }
};

// A driver call's result as a failure; false: there is none.
inline bool failed(CUresult result, const char* call, Failure& why) {
    if (result == CUDA_SUCCESS) return false;
    why = Failure::of_driver(result, call);
    return true;
}

// Out of memory without an error of the driver. `what` names what ran out; empty: the caller's own
// limit was reached.
inline void note_shortage(const char* what, Failure& why) {
    why = Failure::out_of_memory();
    why.call = what;
}

}  // namespace vramkit
