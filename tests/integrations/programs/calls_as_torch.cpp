// Calls an allocator as PyTorch's own functions do: what it throws becomes Python's exception by
// the function of libtorch_python.so that all of them use. Loaded by ctypes.PyDLL.
#include <cstddef>
#include <exception>

namespace torch {
void translate_exception_to_python(const std::exception_ptr& thrown);
}

extern "C" void* allocate(void* (*malloc)(std::ptrdiff_t, int, void*), std::ptrdiff_t size) {
    try {
        return malloc(size, 0, nullptr);
    } catch (const std::exception&) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}
