// Launches the kernels that decode packed chunks.
#include "weights/decoder.h"

#include <array>
#include <cstdint>

#include "weights/packing.h"

namespace vramkit::weights {

bool Decoder::expand(const std::string& group, const Chunk& chunk, CUdeviceptr staged,
                     CUdeviceptr place, CUstream stream, Failure& why) {
    static_cast<void>(group);
    std::uint64_t to = place + chunk.first_byte, from = staged;
    std::uint64_t count = chunk.bytes / 2, exceptions = chunk.exceptions;
    std::array<void*, 4> arguments{&to, &from, &count, &exceptions};
    const auto launch = [&](CUfunction kernel, unsigned blocks) {
        return !failed(driver_->call().cuLaunchKernel(kernel, blocks, 1, 1, kUnpackThreads, 1, 1, 0,
                                                      stream, arguments.data(), nullptr),
                       "cuLaunchKernel", why);
    };
    return launch(unpack_, unpack_blocks(count)) &&
           (exceptions == 0 || launch(patch_, patch_blocks(exceptions)));
}

}  // namespace vramkit::weights
