// PyTorch's own exception for a lack of memory, thrown without linking to PyTorch.
#pragma once

#include <string>

namespace vramkit::capi {

// Throws the c10::OutOfMemoryError of the libc10.so in this process, which PyTorch turns into
// torch.OutOfMemoryError; a std::runtime_error where no such class is found.
[[noreturn]] void throw_out_of_memory(const std::string& text);

}  // namespace vramkit::capi
