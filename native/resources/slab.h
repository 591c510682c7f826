// One piece of device memory that a resource hands out in parts, and tells the checker of.
#pragma once

#include "resources/resource.h"

namespace vramkit::resources {

class Slab {
  public:
    explicit Slab(const Driver& driver)
        : call_(driver.call()),
          allocated_(reinterpret_cast<Tell>(driver.symbol("simBlockAlloc"))),
          freed_(reinterpret_cast<Tell>(driver.symbol("simBlockFree"))) {}

    CUresult open(std::uint64_t bytes) {
        bytes_ = bytes;
        return call_.cuMemAlloc_v2(&address_, bytes);
    }
    void close() {
        call_.cuMemFree_v2(address_);
        address_ = bytes_ = 0;
    }
    std::uint64_t address() const { return address_; }
    std::uint64_t bytes() const { return bytes_; }

    // The checker of a simulated GPU then sees use after free, and frees without order.
    void tell_allocated(std::uint64_t address, std::uint64_t bytes, CUstream stream) const {
        if (allocated_ != nullptr) allocated_(address, bytes, stream);
    }
    void tell_freed(std::uint64_t address, std::uint64_t bytes, CUstream stream) const {
        if (freed_ != nullptr) freed_(address, bytes, stream);
    }

  private:
    using Tell = void (*)(std::uint64_t, std::size_t, void*);

    const DriverTable& call_;
    Tell allocated_;
    Tell freed_;
    CUdeviceptr address_ = 0;
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit::resources
