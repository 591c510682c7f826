// What PyTorch catches from its allocator.
#include <cstdio>
#include <stdexcept>

#include "vramkit.h"

int main() {
    for (const std::ptrdiff_t size : {std::ptrdiff_t{1} << 40, std::ptrdiff_t{-1}}) {
        try {
            vramkit_torch_malloc(size, 0, nullptr);
        } catch (const std::runtime_error& error) {
            std::printf("%s\n", error.what());
        }
    }
}
