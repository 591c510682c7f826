// A class with the names of PyTorch's libc10.so, which the program exports: a lack of memory throws
// it, and nothing else does. INHERITED: as before PyTorch 2.13, without a constructor of its own.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "vramkit.h"

namespace c10 {

struct SourceLocation {
    const char* function;
    const char* file;
    std::uint32_t line;
};

int alive = 0;

class Error : public std::exception {
  public:
    Error(SourceLocation where, std::string text);
    Error(const Error&) = delete;
    Error& operator=(const Error&) = delete;
    ~Error() override { --alive; }
    const char* what() const noexcept override { return text_.c_str(); }
    const char* function() const { return function_.c_str(); }
    virtual const char* kind() const { return "Error"; }

  private:
    std::string text_, function_;
};

// Not inline: exported, as in libc10.so.
Error::Error(SourceLocation where, std::string text)
    : text_(std::move(text)), function_(where.function) {
    ++alive;
}

class OutOfMemoryError : public Error {
  public:
#ifdef INHERITED
    using Error::Error;
#else
    OutOfMemoryError(SourceLocation where, std::string text);
#endif
    const char* kind() const override { return "OutOfMemoryError"; }
};

#ifdef INHERITED
// Somebody throws it: the vtable is here.
void throw_one() { throw OutOfMemoryError({"", "", 0}, ""); }
#else
OutOfMemoryError::OutOfMemoryError(SourceLocation where, std::string text)
    : Error(where, std::move(text)) {}
#endif

}  // namespace c10

int main() {
    for (const std::ptrdiff_t size : {std::ptrdiff_t{1} << 40, std::ptrdiff_t{-1}}) {
        try {
            vramkit_torch_malloc(size, 0, nullptr);
        } catch (const c10::OutOfMemoryError& error) {
            std::printf("%s from %s: %s\n", error.kind(), error.function(), error.what());
        } catch (const std::exception& error) {
            std::printf("std: %s\n", error.what());
        }
    }
    std::printf("%d alive, %d counted\n", c10::alive, static_cast<int>(vramkit_torch_failures(0)));
}
