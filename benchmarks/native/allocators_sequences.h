// What every allocator is asked for: sizes and orders from a fixed seed, made before the clock
// starts, so that all allocators see the same sequence and none pays for the generator.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bench {

// SplitMix64: the same numbers on every machine and standard library.
class Generator {
  public:
    explicit Generator(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
        return mixed ^ (mixed >> 31);
    }
    double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    std::uint64_t below(std::uint64_t bound) {
        return static_cast<std::uint64_t>(fraction() * static_cast<double>(bound));
    }
    std::uint64_t uniform(std::uint64_t least, std::uint64_t most) {
        return least + below(most - least + 1);
    }
    std::uint64_t log_uniform(std::uint64_t least, std::uint64_t most) {
        const double low = std::log(static_cast<double>(least));
        const double high = std::log(static_cast<double>(most));
        return static_cast<std::uint64_t>(std::exp(low + fraction() * (high - low)));
    }

  private:
    std::uint64_t state_;
};

struct SizeRange {
    const char* name;
    const char* words;
    std::uint32_t least;
    std::uint32_t most;
};

inline constexpr SizeRange kSmallSizes{"small", "256 B to 1 MiB", 256, 1u << 20};
inline constexpr SizeRange kLargeSizes{"large", "4 KiB to 64 MiB", 4096, 64u << 20};

inline constexpr std::size_t kLiveBlocks = 64;  // of one thread
inline constexpr std::size_t kSteps = 8192;     // then the sequence starts over; a power of two

// One pair: free the block in the slot, allocate this many bytes into it.
struct Step {
    std::uint32_t slot;
    std::uint32_t bytes;
};

inline std::vector<Step> pair_steps(const SizeRange& sizes, int thread) {
    Generator random(1000 + static_cast<std::uint64_t>(thread));
    std::vector<Step> steps(kSteps);
    for (Step& step : steps) {
        step.slot = static_cast<std::uint32_t>(random.below(kLiveBlocks));
        step.bytes = static_cast<std::uint32_t>(random.log_uniform(sizes.least, sizes.most));
    }
    return steps;
}

// RMM's RANDOM_ALLOCATIONS by its parameters: sizes uniform from 1 to the largest; two steps for
// each allocation; with 73 % chance an allocation while some are left and less than 16,000 MiB are
// live, else a random live block is freed.
struct RandomOperation {
    std::uint32_t block;
    bool allocate;
};

struct RandomAllocations {
    std::vector<std::uint64_t> bytes;  // by block
    std::vector<RandomOperation> operations;
    std::uint64_t most_live = 0;   // bytes
    std::size_t to_most_live = 0;  // operations up to there
};

inline RandomAllocations random_allocations(std::uint32_t count, std::uint64_t largest) {
    constexpr double kChance = 0.73;
    constexpr std::uint64_t kMostLive = std::uint64_t{16'000} << 20;
    Generator random(42);
    RandomAllocations result;
    std::vector<std::uint32_t> live;
    std::uint64_t live_bytes = 0;
    for (std::uint32_t step = 0; step < 2 * count; ++step) {
        const std::uint64_t bytes = random.uniform(1, largest);
        const bool allocate =
            live.empty() || (random.fraction() < kChance && result.bytes.size() < count &&
                             live_bytes + bytes < kMostLive);
        if (allocate) {
            const auto block = static_cast<std::uint32_t>(result.bytes.size());
            result.bytes.push_back(bytes);
            result.operations.push_back({block, true});
            live.push_back(block);
            live_bytes += bytes;
            if (live_bytes > result.most_live) {
                result.most_live = live_bytes;
                result.to_most_live = result.operations.size();
            }
        } else {
            const std::size_t chosen = random.below(live.size());
            result.operations.push_back({live[chosen], false});
            live_bytes -= result.bytes[live[chosen]];
            live[chosen] = live.back();
            live.pop_back();
        }
    }
    for (const std::uint32_t block : live) result.operations.push_back({block, false});
    return result;
}

// The blocks that fill a card before every second one is freed: 2 to 64 MiB, uniform.
inline std::vector<std::uint64_t> filling_sizes(std::uint64_t total) {
    Generator random(7);
    std::vector<std::uint64_t> sizes;
    for (std::uint64_t sum = 0; sum < total; sum += sizes.back()) {
        sizes.push_back(random.uniform(2u << 20, 64u << 20));
    }
    return sizes;
}

}  // namespace bench
