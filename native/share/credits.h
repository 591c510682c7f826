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
        return unlimited_.load(std::memory_order_relaxed);
    }
    void give(std::uint64_t bytes) override {
        if (!unlimited_.load(std::memory_order_relaxed)) {
            spare_.fetch_add(bytes, std::memory_order_relaxed);
        }
    }
    // Takes what there is, at most so much.
    std::uint64_t take_up_to(std::uint64_t bytes) {
        std::uint64_t spare = spare_.load(std::memory_order_relaxed);
        std::uint64_t taken = spare < bytes ? spare : bytes;
        while (!spare_.compare_exchange_weak(spare, spare - taken, std::memory_order_relaxed)) {
            taken = spare < bytes ? spare : bytes;
        }
        return taken;
    }

    std::uint64_t spare() const { return spare_.load(std::memory_order_relaxed); }
    // While nobody else has a say: the card alone is the limit.
    void set_unlimited(bool unlimited) {
        unlimited_.store(unlimited, std::memory_order_relaxed);
        spare_.store(0, std::memory_order_relaxed);
    }

  private:
    std::atomic<std::uint64_t> spare_{0};
    std::atomic<bool> unlimited_{true};
};

}  // namespace vramkit::share
