// A vector clock: how much of each component's work is known to be ordered before a point.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vramkit::sim {

// A component is one chain of ordered work: a stream. The host's own accesses need none: whatever
// is issued later is ordered after them.
using Component = std::uint32_t;

class Clock {
  public:
    std::uint64_t at(Component component) const {
        return component < times_.size() ? times_[component] : 0;
    }

    // Raises one entry; entries never fall.
    void raise(Component component, std::uint64_t time) {
        if (component >= times_.size()) times_.resize(component + 1, 0);
        times_[component] = std::max(times_[component], time);
    }

    // Whatever is ordered before `other` is ordered before this point too.
    void join(const Clock& other) {
        if (times_.size() < other.times_.size()) times_.resize(other.times_.size(), 0);
        for (std::size_t i = 0; i < other.times_.size(); ++i) {
            times_[i] = std::max(times_[i], other.times_[i]);
        }
    }

    // What is ordered before both points.
    void meet(const Clock& other) {
        if (times_.size() > other.times_.size()) times_.resize(other.times_.size());
        for (std::size_t i = 0; i < times_.size(); ++i) {
            times_[i] = std::min(times_[i], other.times_[i]);
        }
    }

  private:
    std::vector<std::uint64_t> times_;
};

}  // namespace vramkit::sim
