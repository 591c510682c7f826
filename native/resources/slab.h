// One allocation that a resource hands out in parts. The checker knows it as a region of blocks.
#pragma once

#include "base/checker.h"

namespace vramkit::resources {

class Slab {
  public:
    explicit Slab(const Driver& driver) : call_(driver.call()), checker_(driver) {}

    CUresult open(std::uint64_t bytes) {
        bytes_ = bytes;
        const CUresult result = call_.cuMemAlloc_v2(&address_, bytes);
        if (result == CUDA_SUCCESS) checker_.region(address_, bytes);
        return result;
    }
    void close() {
        call_.cuMemFree_v2(address_);
        address_ = bytes_ = 0;
    }
    std::uint64_t address() const { return address_; }
    std::uint64_t bytes() const { return bytes_; }

    const Checker& checker() const { return checker_; }

  private:
    const DriverTable& call_;
    const Checker checker_;
    CUdeviceptr address_ = 0;
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit::resources
