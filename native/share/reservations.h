// The address ranges that the program has reserved: memory that is not on the card yet can be
// mapped only there, and the driver is not asked then.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "base/host_memory.h"

namespace vramkit::share {

class Reservations {
  public:
    void add(std::uint64_t begin, std::uint64_t bytes) {
        const std::lock_guard guard(lock_);
        if (!if_host_memory_allows([&] { ranges_.insert_or_assign(begin, bytes); })) {
            incomplete_ = true;
        }
    }
    void remove(std::uint64_t begin) {
        const std::lock_guard guard(lock_);
        ranges_.erase(begin);
    }
    // Whether one of them holds the whole range.
    bool hold(std::uint64_t begin, std::uint64_t bytes) const {
        const std::lock_guard guard(lock_);
        const auto behind = ranges_.upper_bound(begin);
        if (incomplete_) return true;
        if (behind == ranges_.begin()) return false;
        const auto [start, size] = *std::prev(behind);
        return begin - start < size && bytes <= size - (begin - start);
    }

  private:
    mutable std::mutex lock_;
    std::map<std::uint64_t, std::uint64_t> ranges_;  // begin, bytes
    bool incomplete_ = false;                        // host memory ran out: nothing is known
};

}  // namespace vramkit::share
