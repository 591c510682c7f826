// c10::OutOfMemoryError by the symbols that PyTorch's libraries export.
#include "capi/torch_errors.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
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

#define VRAMKIT_ARGUMENTS \
    "C1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
constexpr const char* kConstructor = "_ZN3c1016OutOfMemoryError" VRAMKIT_ARGUMENTS;
constexpr const char* kConstructorOfBase = "_ZN3c105Error" VRAMKIT_ARGUMENTS;
#undef VRAMKIT_ARGUMENTS
constexpr const char* kTypeinfo = "_ZTIN3c1016OutOfMemoryErrorE";
constexpr const char* kVtable = "_ZTVN3c1016OutOfMemoryErrorE";
// An object points behind the two words that a vtable begins with.
constexpr std::size_t kBeforeFunctions = 2 * sizeof(void*);

// The size of the class is not exported. It is 128 bytes in PyTorch 2.13: this leaves room.
constexpr std::size_t kRoom = 4096;

struct Symbols {
    Construct construct = nullptr;
    std::type_info* type = nullptr;
    const char* vtable = nullptr;  // not null: the constructor is that of the base class
};

// PyTorch 2.13 exports a constructor. In earlier versions the class only inherits that of
// c10::Error and adds no members: such an object is one of the base class with another vtable.
Symbols symbols_in(void* library) {
    const auto type = static_cast<std::type_info*>(dlsym(library, kTypeinfo));
    if (type == nullptr) return {};
    if (void* const own = dlsym(library, kConstructor)) {
        return {reinterpret_cast<Construct>(own), type, nullptr};
    }
    void* const base = dlsym(library, kConstructorOfBase);
    const auto vtable = static_cast<const char*>(dlsym(library, kVtable));
    if (base == nullptr || vtable == nullptr) return {};
    return {reinterpret_cast<Construct>(base), type, vtable + kBeforeFunctions};
}

// Python loads PyTorch's libraries without making their symbols global: they must be asked by name,
// and answer for the libraries they need too. Earlier versions have the vtable only where errors of
// this class are thrown, in libc10_cuda.so. A program that links to PyTorch has them in its global
// scope.
Symbols find_symbols() {
    for (const char* const name : {"libc10_cuda.so", "libc10.so"}) {
        void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
        if (library == nullptr) continue;
        const Symbols found = symbols_in(library);
        dlclose(library);  // it stays loaded: whoever called us is PyTorch
        if (found.construct != nullptr) return found;
    }
    return symbols_in(RTLD_DEFAULT);
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
    if (c10.vtable != nullptr) std::memcpy(object, &c10.vtable, sizeof c10.vtable);
    abi::__cxa_throw(object, c10.type, destroy);
}

}  // namespace vramkit::capi
