// The driver's own pool, in stream order: cuMemAllocAsync and cuMemFreeAsync.
#pragma once

#include "resources/plain_resource.h"

namespace vramkit::resources {

class DriverPool final : public PlainResource {
  public:
    struct Settings {
        bool shared = false;  // the default pool of the device, which the whole process shares
        std::optional<std::uint64_t> release_threshold;  // none: unchanged in a shared pool, else
                                                         // keep everything
    };

    // Null and the reason on failure.
    static std::shared_ptr<DriverPool> open(std::shared_ptr<Driver> driver, int device,
                                            CUcontext context, Settings settings, Failure& why);

    std::uint64_t reserved_bytes() const override {
        return attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    }
    std::uint64_t release_threshold() const { return attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD); }
    // Gives unused memory back to the driver.
    bool trim(Failure& why);

  private:
    DriverPool(std::shared_ptr<Driver> driver, CUcontext context, bool shared)
        : PlainResource(std::move(driver), context, "AsyncResource"), shared_(shared) {}

    std::uint64_t take(std::uint64_t bytes, StreamRef stream, Failure& why) override;
    bool give(std::uint64_t address, const Block& block, StreamRef at, Failure& why) override;
    void give_back_everything() override;
    std::uint64_t attribute(CUmemPool_attribute which) const;

    const bool shared_;
    CUmemoryPool pool_ = nullptr;
    std::optional<std::uint64_t> threshold_before_;  // of a shared pool, restored at the end
};

}  // namespace vramkit::resources
