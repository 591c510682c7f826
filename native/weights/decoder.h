// Expands packed chunks (packing.h) by kernels.
#pragma once

#include <memory>
#include <utility>

#include "weights/expander.h"

namespace vramkit::weights {

class Decoder final : public Expander {
  public:
    // The kernels vk_unpack_bf16 and vk_patch_bf16.
    Decoder(std::shared_ptr<Driver> driver, CUfunction unpack, CUfunction patch)
        : driver_(std::move(driver)), unpack_(unpack), patch_(patch) {}

    bool expand(const StagedChunk& staged, Failure& why) override;

  private:
    const std::shared_ptr<Driver> driver_;
    const CUfunction unpack_, patch_;
};

}  // namespace vramkit::weights
