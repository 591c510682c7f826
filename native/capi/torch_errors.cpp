// c10::OutOfMemoryError by its exported constructor and typeinfo.
#include "capi/torch_errors.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <typeinfo>

namespace vramkit::capi {
namespace {

// As c10 declares it: part of the constructor's signature.
struct SourceLocation {
    const char* function;
    const char* file;
    std::uint32_t line;
};

// On x86-64 a constructor is called like a function that takes the object's address first.
using Construct = void (*)(void* object, SourceLocation where, std::string text);

constexpr const char* kConstructor =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcE"
    "SaIcEEE";
constexpr const char* kTypeinfo = "_ZTIN3c1016OutOfMemoryErrorE";

// The size of the class is not exported. It is 128 bytes in PyTorch 2.13: this leaves room.
constexpr std::size_t kRoom = 4096;

struct Symbols {
    Construct construct = nullptr;
    std::type_info* type = nullptr;
};

Symbols symbols_in(void* library) {
    void* const construct = dlsym(library, kConstructor);
    void* const type = dlsym(library, kTypeinfo);
    if (construct == nullptr || type == nullptr) return {};
    return {reinterpret_cast<Construct>(construct), static_cast<std::type_info*>(type)};
}

// Python loads libc10.so without making its symbols global: it must be asked by name. A program
// that links to PyTorch statically has them in its global scope.
Symbols find_symbols() {
    Symbols found;
    if (void* const library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD)) {
        found = symbols_in(library);
        dlclose(library);  // it stays loaded: whoever called us is PyTorch
    }
    return found.construct != nullptr ? found : symbols_in(RTLD_DEFAULT);
}

// The destructor is virtual, and std::exception the first base: no symbol is needed.
void destroy(void* object) { static_cast<std::exception*>(object)->~exception(); }

}  // namespace

void throw_out_of_memory(const std::string& text) {
    const Symbols c10 = find_symbols();
    if (c10.construct == nullptr) throw std::runtime_error(text);
    void* const object = abi::__cxa_allocate_exception(kRoom);
    try {
        c10.construct(object, {"vramkit_torch_malloc", "libvramkit.so", 0}, text);
    } catch (...) {
        abi::__cxa_free_exception(object);
        throw;
    }
    abi::__cxa_throw(object, c10.type, destroy);
}

}  // namespace vramkit::capi
