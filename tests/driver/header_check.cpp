// Compares our declarations of the driver ABI with cuda.h and prints each difference.
// test_headers.py writes checks.inc from our headers, one line for each thing to compare.
#define __CUDA_API_VERSION_INTERNAL  // declares every versioned symbol under its own name
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>

namespace ours {
#include "driver/cuda_abi.h"
}

namespace {

int compared = 0;

void compare(const char* what, const char* name, bool same) {
    ++compared;
    if (!same) std::printf("differs: %s %s\n", what, name);
}

// Handles are pointers to types that only the driver defines, so ours and theirs cannot be the
// same.
template <typename Ours, typename Theirs>
constexpr bool same_shape() {
    if constexpr (std::is_enum_v<Ours> && std::is_enum_v<Theirs>) {
        return std::is_same_v<std::underlying_type_t<Ours>, std::underlying_type_t<Theirs>>;
    } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        return std::is_function_v<std::remove_pointer_t<Ours>> ==
               std::is_function_v<std::remove_pointer_t<Theirs>>;
    } else {
        return std::is_same_v<Ours, Theirs>;
    }
}

template <typename Value>
long long number(Value value) {
    if constexpr (std::is_pointer_v<Value>) {
        return static_cast<long long>(reinterpret_cast<std::intptr_t>(value));
    } else {
        return static_cast<long long>(value);
    }
}

}  // namespace

// The parameters are written with type names that cuda.h has too; here they mean cuda.h's types.
#define CHECK_CALL(symbol, parameters) \
    compare("signature of", #symbol, std::is_same_v<decltype(symbol), CUresult parameters>);
#define CHECK_RESULT(name, code) compare("code of", #name, number(::name) == (code));
#define CHECK_VALUE(name, theirs) compare("value of", #name, number(name) == number(theirs));
#define CHECK_TYPE(name) compare("type", #name, same_shape<ours::name, ::name>());
#define CHECK_SIZE(name) compare("size of", #name, sizeof(ours::name) == sizeof(::name));
#define CHECK_MEMBER(name, member)                                      \
    compare("offset of", #name "." #member,                             \
            offsetof(ours::name, member) == offsetof(::name, member) && \
                sizeof(ours::name::member) == sizeof(::name::member));

int main() {
#include "checks.inc"
    std::printf("CUDA_VERSION %d\ncompared %d\n", CUDA_VERSION, compared);
}
