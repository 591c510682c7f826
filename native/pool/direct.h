// Large blocks straight from the driver, as seed 002 has them: cuMemAlloc and cuMemFree, which
// waits for all work of the card.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "pool/failure.h"

namespace vramkit::pool {

struct DirectBlock {
    std::uint64_t bytes = 0;
    std::uint32_t stream = 0;
};

// The list of them, with the pool's lock; the driver is called without it.
class Direct {
  public:
    void add(std::uint64_t address, DirectBlock block) {
        blocks_.emplace(address, block);
        bytes_ += block.bytes;
    }
    const DirectBlock* find(std::uint64_t address) const {
        const auto found = blocks_.find(address);
        return found == blocks_.end() ? nullptr : &found->second;
    }
    void remove(std::uint64_t address) {
        const auto found = blocks_.find(address);
        bytes_ -= found->second.bytes;
        blocks_.erase(found);
    }
    std::uint64_t bytes() const { return bytes_; }
    const std::unordered_map<std::uint64_t, DirectBlock>& all() const { return blocks_; }
    void clear() {
        blocks_.clear();
        bytes_ = 0;
    }

  private:
    std::unordered_map<std::uint64_t, DirectBlock> blocks_;
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit::pool
