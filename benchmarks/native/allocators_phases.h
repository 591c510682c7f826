// Seed 001's question: does an allocator get slower as its memory falls to pieces? Four phases.
//   1  100 allocations, timed; then they are freed, and so on round after round
//   2  50 rounds of blocks of all sizes coming and going, a part of which stays live
//   3  as 1, between what stayed
//   4  100 more rounds as in 2, then as 1
// The seed does not say how large its blocks were, and found one allocator to be faster afterwards:
// its first phase had paid for the first use. Here the first phase starts warm.
#pragma once

#include <algorithm>

#include "allocators_bench.h"
#include "allocators_held.h"
#include "allocators_sequences.h"

namespace bench {

inline constexpr int kRoundsBeforeThird = 50;
inline constexpr int kRoundsBeforeFourth = 100;

// Blocks of all sizes that come and go; some stay.
template <class Allocator>
class Churn {
  public:
    Churn(Allocator& allocator, const Lane& lane) : allocator_(allocator), lane_(lane) {}
    ~Churn() {
        while (!live_.empty()) give(live_.size() - 1);
    }
    Churn(const Churn&) = delete;
    Churn& operator=(const Churn&) = delete;

    // Nanoseconds of one call, the generator's share included.
    double run(int rounds) {
        const double start = steady_ns();
        double calls = 0;
        for (int round = 0; round < rounds; ++round) {
            for (std::size_t i = 0; i < kBlocks; ++i, ++calls) {
                const std::uint64_t bytes =
                    random_.log_uniform(kSmallSizes.least, kLargeSizes.most);
                live_.push_back({must(allocator_.allocate(bytes, lane_)), bytes});
            }
            for (; live_.size() > kStaying; ++calls) give(random_.below(live_.size()));
        }
        return (steady_ns() - start) / calls;
    }

  private:
    static constexpr std::size_t kBlocks = 100;
    static constexpr std::size_t kStaying = 200;

    void give(std::size_t index) {
        const Block block = live_[index];
        live_[index] = live_.back();
        live_.pop_back();
        allocator_.deallocate(block.address, block.bytes, lane_);
    }

    Allocator& allocator_;
    const Lane lane_;
    Generator random_{101};
    std::vector<Block> live_;
};

// The 100 blocks of a timed phase, without addresses.
inline std::vector<Block> phase_blocks() {
    Generator random(102);
    std::vector<Block> blocks(100);
    for (Block& block : blocks) {
        block.bytes = random.log_uniform(kLargeSizes.least, kLargeSizes.most);
    }
    return blocks;
}

// Nanoseconds of one of 100 allocations: in the first round, which finds what the phase before
// left, and the median of many rounds.
struct Phase {
    double first_ns = 0;
    double median_ns = 0;
};

// With touch: of the allocation, the launch of a kernel that writes the block, and the card's work
// until the last is written.
template <class Allocator>
Phase measure_phase(const Bench& bench, Allocator& allocator, const Lane& lane, bool touch) {
    constexpr std::size_t kFewestRounds = 30;
    std::vector<Block> blocks = phase_blocks();
    std::vector<double> rounds;
    const double end = steady_ns() + bench.seconds / 4 * 1e9;
    while (rounds.size() < kFewestRounds || steady_ns() < end) {
        const double start = steady_ns();
        for (Block& block : blocks) {
            block.address = must(allocator.allocate(block.bytes, lane));
            if (touch) bench.gpu.fill(block.address, block.bytes / 4, 1, lane.handle);
        }
        if (touch) GPU_CALL(bench.gpu, cuStreamSynchronize, lane.handle);
        rounds.push_back((steady_ns() - start) / static_cast<double>(blocks.size()));
        for (const Block& block : blocks) allocator.deallocate(block.address, block.bytes, lane);
    }
    return {rounds.front(), quantile(rounds, 0.5)};
}

// Peak of live bytes of one repetition.
inline std::uint64_t phases_in_use() {
    InUse in_use;
    const std::vector<Block> blocks = phase_blocks();
    Churn churn(in_use, Lane{});
    for (const int rounds : {0, kRoundsBeforeThird, kRoundsBeforeFourth}) {
        churn.run(rounds);
        for (const Block& block : blocks) in_use.allocate(block.bytes, Lane{});
        for (const Block& block : blocks) in_use.deallocate(0, block.bytes, Lane{});
    }
    return in_use.peak();
}

// Five rows: nanoseconds of each phase, and the fourth phase as a part of the first, which also
// says what was held. Each repetition has a new allocator.
template <class Maker>
void measure_phases(Bench& bench, const Row& row, bool touch, Maker make) {
    const Lanes lanes(bench.gpu, 1);
    enum { first, second, third, fourth, ratio, kRows };
    const char* const names[kRows] = {"/1", "/2", "/3", "/4", ""};
    std::vector<double> values[kRows];
    std::vector<double> firsts[kRows];
    HeldMemory held(bench);
    for (int repetition = -1; repetition < bench.repetitions; ++repetition) {
        const auto allocator = held.make(make);
        Churn churn(*allocator, lanes[0]);
        const auto time = [&] { return measure_phase(bench, *allocator, lanes[0], touch); };
        time();
        const Phase baseline = time();
        const double breaking = churn.run(kRoundsBeforeThird);
        const Phase broken = time();
        churn.run(kRoundsBeforeFourth);
        const Phase old = time();
        held.look();  // only now: the first round of a phase would feel a driver call before it
        if (repetition < 0) continue;
        const Phase found[kRows] = {
            baseline,
            {0, breaking},
            broken,
            old,
            {old.first_ns / baseline.first_ns, old.median_ns / baseline.median_ns}};
        for (int i = 0; i < kRows; ++i) {
            values[i].push_back(found[i].median_ns);
            firsts[i].push_back(found[i].first_ns);
        }
    }
    for (int i = 0; i < kRows; ++i) {
        Row each = row;
        each.workload += names[i];
        if (i != second) each.details = {{"first_round", quantile(firsts[i], 0.5)}};
        if (i == ratio) {
            each.unit = "of phase 1";
            held.write(each, phases_in_use());
        }
        each.values = std::move(values[i]);
        bench.rows.push_back(std::move(each));
    }
}

}  // namespace bench
