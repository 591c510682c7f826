// Credits that the program holds and does not use.
#pragma once

#include <atomic>
#include <cstdint>

#include "swap/credits.h"

namespace vramkit::share {

class SpareCredits final : public swap::Credits {
  public:
    bool take(std::uint64_t bytes) override {
        std::uint64_t spare = spare_.load(std::memory_order_relaxed);
        while (spare >= bytes) {
            if (spare_.compare_exchange_weak(spare, spare - bytes, std::memory_order_relaxed)) {
                return true;
            }
        }
        return false;
    }
    void give(std::uint64_t bytes) override { spare_.fetch_add(bytes, std::memory_order_relaxed); }

    std::uint64_t spare() const { return spare_.load(std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t> spare_{0};
};

}  // namespace vramkit::share
