// A page of counters, one a card: how many bytes its owner has freed and passed on. It only grows.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace vramkit::share {

class CreditPage {
  public:
    CreditPage() = default;
    // Maps a descriptor and closes it. `writable`: our own page.
    CreditPage(int descriptor, bool writable);
    CreditPage(CreditPage&& other) noexcept : counters_(std::exchange(other.counters_, nullptr)) {}
    CreditPage& operator=(CreditPage&& other) noexcept {
        std::swap(counters_, other.counters_);
        return *this;
    }
    ~CreditPage();

    explicit operator bool() const { return counters_ != nullptr; }
    std::uint64_t given(std::uint32_t card) const {
        return counters_[card].load(std::memory_order_acquire);
    }
    void give(std::uint32_t card, std::uint64_t bytes) {
        counters_[card].fetch_add(bytes, std::memory_order_release);
    }

  private:
    std::atomic<std::uint64_t>* counters_ = nullptr;
};

}  // namespace vramkit::share
