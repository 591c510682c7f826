// What allocators tell the checker of a simulated GPU, so that it finds use after free inside their
// memory. On a real driver there is no checker, and every call is one comparison.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver/driver.h"

namespace vramkit {

class Checker {
  public:
    explicit Checker(const Driver& driver) {
        find(driver, "simRelyOnWaits", rely_on_waits_);
        // Blocks are known by the memory behind them, and that of a program that shares its card
        // changes.
        if (driver.memory_moves()) return;
        find(driver, "simBlockAlloc", block_allocated_);
        find(driver, "simBlockFree", block_freed_);
        find(driver, "simBlockHold", block_held_);
        find(driver, "simBlockRegion", region_);
    }

    bool listens() const { return block_allocated_ != nullptr; }
    // The stream's handle must name that stream on this thread, now. The legacy one is that of the
    // card that has the memory.
    void block_allocated(std::uint64_t address, std::uint64_t bytes, CUstream stream) const {
        if (block_allocated_ != nullptr) block_allocated_(address, bytes, stream);
    }
    void block_freed(std::uint64_t address, std::uint64_t bytes, CUstream stream) const {
        if (block_freed_ != nullptr) block_freed_(address, bytes, stream);
    }
    // Freed by the program, but not reused until other streams are done with it too.
    void block_held(std::uint64_t address, std::uint64_t bytes, CUstream stream) const {
        if (block_held_ != nullptr) block_held_(address, bytes, stream);
    }
    // Memory that is handed out in blocks: an access outside of a block is an error.
    void region(std::uint64_t address, std::uint64_t bytes) const {
        if (region_ != nullptr) region_(address, bytes);
    }

    // While it lives, this thread relies on purpose on waits that the driver does not document.
    class RelyingOnWaits {
      public:
        explicit RelyingOnWaits(const Checker& checker) : rely_(checker.rely_on_waits_) {
            if (rely_ != nullptr) rely_(1);
        }
        ~RelyingOnWaits() {
            if (rely_ != nullptr) rely_(0);
        }
        RelyingOnWaits(const RelyingOnWaits&) = delete;
        RelyingOnWaits& operator=(const RelyingOnWaits&) = delete;

      private:
        void (*rely_)(int);
    };

  private:
    template <class Function>
    static void find(const Driver& driver, const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(driver.symbol(name));
    }

    void (*block_allocated_)(std::uint64_t, std::size_t, void*) = nullptr;
    void (*block_freed_)(std::uint64_t, std::size_t, void*) = nullptr;
    void (*block_held_)(std::uint64_t, std::size_t, void*) = nullptr;
    void (*region_)(std::uint64_t, std::size_t) = nullptr;
    void (*rely_on_waits_)(int) = nullptr;
};

}  // namespace vramkit
