// Repeated measurements of one quantity and what is said about them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace bench {

// Value at a fraction (0 to 1) of the sorted values, between neighbours by a straight line.
inline double quantile(std::vector<double> values, double fraction) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double place = fraction * static_cast<double>(values.size() - 1);
    const auto low = static_cast<std::size_t>(place);
    const std::size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (values[high] - values[low]) * (place - std::floor(place));
}

class Samples {
  public:
    explicit Samples(int repetitions) : repetitions_(repetitions) {}

    // Runs the measurement a few times unrecorded, then keeps what each repetition returns.
    template <class Measurement>
    void repeat(Measurement&& measure) {
        for (int i = 0; i < kWarmups; ++i) measure();
        for (int i = 0; i < repetitions_; ++i) values_.push_back(measure());
    }
    const std::vector<double>& values() const { return values_; }

  private:
    static constexpr int kWarmups = 2;

    int repetitions_;
    std::vector<double> values_;
};

}  // namespace bench
