// Launches the kernels that decode packed chunks.
#include "weights/decoder.h"

#include <array>
#include <cstdint>

#include "weights/packing.h"

namespace vramkit::weights {

bool Decoder::expand(const StagedChunk& staged, Failure& why) {
    std::uint64_t to = staged.destination, from = staged.staging;
    std::uint64_t count = staged.chunk.bytes / 2, exceptions = staged.chunk.exceptions;
    std::array<void*, 4> arguments{&to, &from, &count, &exceptions};
    const auto launch = [&](CUfunction kernel, unsigned blocks) {
        return !failed(driver_->call().cuLaunchKernel(kernel, blocks, 1, 1, kUnpackThreads, 1, 1, 0,
                                                      staged.stream, arguments.data(), nullptr),
                       "cuLaunchKernel", why);
    };
    return launch(unpack_, unpack_blocks(count)) &&
           (exceptions == 0 || launch(patch_, patch_blocks(exceptions)));
}

}  // namespace vramkit::weights
