// Memory that a swap engine keeps: mode swap.
#pragma once

#include <memory>

#include "share/memory.h"
#include "share/settings.h"

namespace vramkit::share {

class SwappedMemory final : public Memory {
  public:
    // In this context, which must be current. Table and context must outlive it.
    static std::unique_ptr<Memory> open(const DriverTable& call, CUcontext context, CUdevice device,
                                        const Settings& settings, Failure& why);
    ~SwappedMemory() override;

    std::uint64_t allocate(std::uint64_t bytes, Failure& why) override;
    void set_limit(std::uint64_t bytes) override { engine_->set_limit(bytes); }
    bool free(std::uint64_t address, std::uint64_t& freed, Failure& why) override;
    std::optional<swap::Block> find(std::uint64_t address) const override;
    bool bring(swap::Credits& credits, std::uint64_t& missing, Failure& why) override;
    bool finish(Failure& why) override;
    bool move_out(std::uint64_t bytes, swap::Credits& credits, Failure& why) override;
    bool prepare_host(std::uint64_t bytes, Failure& why) override;
    std::uint64_t bytes_to_come() const override;
    swap::Usage usage() const override;
    swap::Traffic traffic() const override;
    std::uint64_t card_bytes() const override;
    swap::Engine* engine() override { return engine_.get(); }

  private:
    explicit SwappedMemory(const DriverTable& call) : call_(call) {}

    const DriverTable& call_;
    CUmodule kernels_ = nullptr;
    std::unique_ptr<swap::Engine> engine_;
};

}  // namespace vramkit::share
