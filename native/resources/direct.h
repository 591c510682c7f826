// Every block straight from the driver, and freed at once: no pool at all.
#pragma once

#include "resources/plain_resource.h"

namespace vramkit::resources {

class Direct final : public PlainResource {
  public:
    Direct(std::shared_ptr<Driver> driver, CUcontext context)
        : PlainResource(std::move(driver), context, "DirectResource") {}

  private:
    std::uint64_t take(std::uint64_t bytes, StreamRef, Failure& why) override {
        CUdeviceptr address = 0;
        const CUresult made = call().cuMemAlloc_v2(&address, bytes);
        if (made == CUDA_SUCCESS) return address;
        refuse(made, "cuMemAlloc_v2", bytes, why);
        return 0;
    }
    // cuMemFree waits for the whole card, but that is not documented: so we wait for the stream.
    bool give(std::uint64_t address, const Block&, StreamRef at, Failure& why) override {
        const CUresult waited = call().cuStreamSynchronize(at.handle);
        if (waited != CUDA_SUCCESS) return refuse(waited, "cuStreamSynchronize", 0, why);
        const CUresult freed = call().cuMemFree_v2(address);
        return freed == CUDA_SUCCESS || refuse(freed, "cuMemFree_v2", 0, why);
    }
    void give_back_everything() override {}
};

}  // namespace vramkit::resources
