// Workloads that count nanoseconds of a free and an allocation: steady state, from thread to
// thread, and among many holes.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "allocators_bench.h"
#include "allocators_held.h"
#include "allocators_sequences.h"

namespace bench {

inline constexpr std::size_t kStepsBetweenLooks = 64;

// A thread that keeps 64 blocks and replaces one of them at a time.
template <class Allocator>
class PairWorker {
  public:
    PairWorker(Allocator& allocator, const Lane& lane, const SizeRange& sizes, int thread)
        : allocator_(&allocator), lane_(lane), steps_(pair_steps(sizes, thread)) {
        for (std::size_t slot = 0; slot < kLiveBlocks; ++slot) {
            const std::uint64_t bytes = steps_[slot].bytes;
            live_[slot] = {must(allocator.allocate(bytes, lane)), bytes};
        }
    }
    PairWorker(PairWorker&& other) noexcept
        : allocator_(std::exchange(other.allocator_, nullptr)),
          lane_(other.lane_),
          steps_(std::move(other.steps_)),
          live_(other.live_) {}
    PairWorker& operator=(PairWorker&&) = delete;
    ~PairWorker() {
        if (allocator_ == nullptr) return;
        for (const Block& block : live_) {
            if (block.address != 0) allocator_->deallocate(block.address, block.bytes, lane_);
        }
    }

    Tally operator()(const std::atomic<bool>& stop) {
        return run([&] { return stop.load(std::memory_order_relaxed); });
    }
    // For the calling thread alone, by the clock.
    Tally for_seconds(double seconds) {
        const double end = steady_ns() + seconds * 1e9;
        return run([&] { return steady_ns() >= end; });
    }

  private:
    template <class Stop>
    Tally run(Stop stop) {
        const double start = steady_ns();
        double pairs = 0;
        do {
            for (std::size_t i = 0; i < kStepsBetweenLooks; ++i) {
                const Step step = steps_[at_++ % kSteps];
                Block& block = live_[step.slot];
                const std::uint64_t freed = std::exchange(block.address, 0);
                allocator_->deallocate(freed, block.bytes, lane_);
                block = {must(allocator_->allocate(step.bytes, lane_)), step.bytes};
            }
            pairs += kStepsBetweenLooks;
        } while (!stop());
        const double ns = steady_ns() - start;
        return {ns, pairs, ns};
    }

    Allocator* allocator_;
    Lane lane_;
    std::vector<Step> steps_;
    std::array<Block, kLiveBlocks> live_;
    std::size_t at_ = 0;
};

// Peak of live bytes of threads that made so many pairs each. Here they go on together, a look at
// a time. In a run they drift apart, and over millions of pairs their sum may once be a few per
// cent higher; the sum of their own peaks would be a third too high with 16 threads.
inline std::uint64_t pairs_in_use(const SizeRange& sizes, int threads, double pairs) {
    InUse in_use;
    std::vector<PairWorker<InUse>> workers;
    for (int thread = 0; thread < threads; ++thread) {
        workers.emplace_back(in_use, Lane{}, sizes, thread);
    }
    const std::atomic<bool> stop{true};  // at the first look
    // From the second time through the sequence on everything repeats.
    const double enough = std::min(pairs, 2.0 * kSteps);
    for (double made = 0; made < enough; made += kStepsBetweenLooks) {
        for (auto& worker : workers) worker(stop);
    }
    return in_use.peak();
}

template <class Maker>
void measure_pairs(Bench& bench, Row row, const SizeRange& sizes, int threads, Maker make) {
    const Lanes lanes(bench.gpu, static_cast<std::size_t>(threads));
    HeldMemory held(bench);
    const auto allocator = held.make(make);
    double pairs = 0;  // of all threads, with those of the warm-up
    const auto tallies = side_by_side(
        bench, threads,
        [&](int thread) {
            const Lane& lane = lanes[static_cast<std::size_t>(thread)];
            return PairWorker(*allocator, lane, sizes, thread);
        },
        [&](const std::vector<Tally>& repetition) {
            for (const Tally& tally : repetition) pairs += tally.pairs;
            held.look();
        });
    for (const auto& repetition : tallies) row.values.push_back(ns_a_pair(repetition));
    held.write(row, pairs_in_use(sizes, threads, pairs / threads));
    bench.rows.push_back(std::move(row));
}

// Blocks on their way from one thread to another, 64 at a time; one writer, one reader.
struct Conveyor {
    static constexpr std::size_t kBatches = 8;
    static constexpr std::size_t kBatchesOfSteps = kSteps / kLiveBlocks;

    explicit Conveyor(int writer) : steps(pair_steps(kSmallSizes, writer)) {
        for (std::size_t i = 0; i < kSteps; ++i) batch_bytes[i / kLiveBlocks] += steps[i].bytes;
    }
    // Bytes on their way, for any thread; a batch counts from its last malloc to its last free.
    std::uint64_t live_bytes() const {
        const std::size_t end = written.load(std::memory_order_relaxed);
        std::uint64_t sum = 0;
        for (std::size_t i = read.load(std::memory_order_relaxed); i < end; ++i) {
            sum += batch_bytes[i % kBatchesOfSteps];
        }
        return sum;
    }

    alignas(64) std::array<std::array<Block, kLiveBlocks>, kBatches> batches;
    alignas(64) std::atomic<std::size_t> written{0};
    alignas(64) std::atomic<std::size_t> read{0};
    alignas(64) std::atomic<int> ended{0};  // repetitions that the writer has ended
    std::uint64_t most_live = 0;  // bytes of all conveyors, as the writer of this one saw them
    // Never written again, so on lines of their own.
    alignas(64) std::vector<Step> steps;  // whose sizes the writer takes
    std::array<std::uint64_t, kBatchesOfSteps> batch_bytes{};
};
using Conveyors = std::vector<std::unique_ptr<Conveyor>>;

// Allocates (even threads) or frees (odd ones). Only the calls are on the clock: the conveyor and
// the waiting for it are not.
template <class Allocator>
class ConveyorWorker {
  public:
    ConveyorWorker(Allocator& allocator, const Lane& lane, const Conveyors& all, int thread)
        : allocator_(allocator),
          lane_(lane),
          all_(all),
          conveyor_(*all[static_cast<std::size_t>(thread / 2)]),
          steps_(conveyor_.steps),
          writes_(thread % 2 == 0) {}

    Tally operator()(const std::atomic<bool>& stop) {
        ++repetition_;
        const double start = steady_ns();
        Tally tally;
        if (writes_) {
            try {
                while (!stop.load(std::memory_order_relaxed)) write(tally);
            } catch (...) {
                conveyor_.ended.store(kForGood, std::memory_order_release);
                throw;
            }
            conveyor_.ended.store(repetition_, std::memory_order_release);
        } else {
            while (true) {
                // In this order: what was written before the end is seen after it.
                const bool ended = conveyor_.ended.load(std::memory_order_acquire) >= repetition_;
                if (!read(tally) && ended) break;
            }
        }
        tally.elapsed_ns = steady_ns() - start;
        return tally;
    }

  private:
    static constexpr int kForGood = 1'000'000'000;
    // Odd, so that each of the sequence's 128 batches has its turn.
    static constexpr std::size_t kBatchesBetweenCounts = 15;

    void write(Tally& tally) {
        const std::size_t place = conveyor_.written.load(std::memory_order_relaxed);
        const std::size_t waiting = place - conveyor_.read.load(std::memory_order_acquire);
        if (waiting == Conveyor::kBatches) {
            std::this_thread::yield();
            return;
        }
        auto& batch = conveyor_.batches[place % Conveyor::kBatches];
        const double start = steady_ns();
        for (Block& block : batch) {
            const std::uint64_t bytes = steps_[at_++ % kSteps].bytes;
            block = {must(allocator_.allocate(bytes, lane_)), bytes};
        }
        tally.ns += steady_ns() - start;
        tally.pairs += kLiveBlocks;
        if (waiting > most_waiting_ || place % kBatchesBetweenCounts == 0) {
            most_waiting_ = std::max(most_waiting_, waiting);
            count_live(place);
        }
        conveyor_.written.store(place + 1, std::memory_order_release);
    }
    // With the batch that was just allocated. Off the clock, and seldom, since it takes the other
    // threads' counters into this cache. The couples go on meanwhile: the sum is close to what is
    // in use at once, not exact.
    void count_live(std::size_t place) {
        std::uint64_t live = conveyor_.batch_bytes[place % Conveyor::kBatchesOfSteps];
        for (const auto& each : all_) live += each->live_bytes();
        if (live > conveyor_.most_live) conveyor_.most_live = live;
    }
    bool read(Tally& tally) {
        const std::size_t place = conveyor_.read.load(std::memory_order_relaxed);
        if (place == conveyor_.written.load(std::memory_order_acquire)) {
            std::this_thread::yield();
            return false;
        }
        const auto& batch = conveyor_.batches[place % Conveyor::kBatches];
        const double start = steady_ns();
        for (const Block& block : batch) allocator_.deallocate(block.address, block.bytes, lane_);
        tally.ns += steady_ns() - start;
        tally.pairs += kLiveBlocks;
        conveyor_.read.store(place + 1, std::memory_order_release);
        return true;
    }

    Allocator& allocator_;
    Lane lane_;
    const Conveyors& all_;
    Conveyor& conveyor_;
    std::span<const Step> steps_;
    bool writes_;
    std::size_t at_ = 0;
    std::size_t most_waiting_ = 0;  // batches
    int repetition_ = 0;
};

// One stream for each pair of threads: the block is freed on the stream it was allocated on.
template <class Maker>
void measure_producer_consumer(Bench& bench, Row row, int couples, Maker make) {
    const Lanes lanes(bench.gpu, static_cast<std::size_t>(couples));
    HeldMemory held(bench);
    const auto allocator = held.make(make);
    Conveyors conveyors;
    for (int i = 0; i < couples; ++i) conveyors.push_back(std::make_unique<Conveyor>(2 * i));
    const auto tallies = side_by_side(
        bench, 2 * couples,
        [&](int thread) {
            const Lane& lane = lanes[static_cast<std::size_t>(thread / 2)];
            return ConveyorWorker(*allocator, lane, conveyors, thread);
        },
        [&](const std::vector<Tally>&) { held.look(); });
    std::uint64_t in_use = 0;
    for (const auto& conveyor : conveyors) in_use = std::max(in_use, conveyor->most_live);
    std::vector<double> allocate;
    std::vector<double> release;
    std::vector<double> whole;
    for (const auto& repetition : tallies) {
        std::vector<Tally> sides[2];
        Tally elapsed;
        for (std::size_t i = 0; i < repetition.size(); ++i) {
            sides[i % 2].push_back(repetition[i]);
            if (i % 2 == 1) elapsed.ns += repetition[i].elapsed_ns;
            if (i % 2 == 1) elapsed.pairs += repetition[i].pairs;
        }
        allocate.push_back(ns_a_pair(sides[0]));
        release.push_back(ns_a_pair(sides[1]));
        whole.push_back(ns_a_pair({elapsed}));
        row.values.push_back(allocate.back() + release.back());
    }
    row.details = {{"allocate_ns", quantile(allocate, 0.5)},
                   {"free_ns", quantile(release, 0.5)},
                   {"wall_ns_a_block_with_the_queue", quantile(whole, 0.5)}};
    held.write(row, in_use);
    bench.rows.push_back(std::move(row));
}

// 1 KiB pairs while 65,536 blocks of 1 KiB, every second one of all, are free. The holes are made
// from the highest address down and the rest is freed from the lowest up: the orders that cost
// address-sorted lists least, since only the pairs are of interest.
template <class Maker>
void measure_holes(Bench& bench, Row row, Maker make) {
    constexpr std::size_t kBlocks = 131'072;
    constexpr std::uint64_t kBytes = 1024;
    const Lanes lanes(bench.gpu, 1);
    HeldMemory held(bench);
    const auto allocator = held.make(make);
    std::vector<std::uint64_t> all(kBlocks);
    for (std::uint64_t& address : all) address = must(allocator->allocate(kBytes, lanes[0]));
    held.look();
    std::sort(all.begin(), all.end());
    std::vector<std::uint64_t> live;
    for (std::size_t i = kBlocks; i-- > 0;) {
        if (i % 2 == 0) {
            live.push_back(all[i]);
        } else {
            allocator->deallocate(all[i], kBytes, lanes[0]);
        }
    }
    // 64 of the live blocks, spread over all of them, take part in the pairs.
    Generator random(5);
    std::vector<std::size_t> slots(kSteps);
    for (std::size_t& slot : slots) slot = random.below(kLiveBlocks) * (live.size() / kLiveBlocks);
    std::size_t at = 0;
    for (int repetition = -1; repetition < bench.repetitions; ++repetition) {
        const double start = steady_ns();
        const double end = start + bench.seconds * 1e9;
        double pairs = 0;
        do {
            for (std::size_t i = 0; i < kStepsBetweenLooks; ++i) {
                std::uint64_t& block = live[slots[at++ % kSteps]];
                allocator->deallocate(block, kBytes, lanes[0]);
                block = must(allocator->allocate(kBytes, lanes[0]));
            }
            pairs += kStepsBetweenLooks;
        } while (steady_ns() < end);
        if (repetition >= 0) row.values.push_back((steady_ns() - start) / pairs);
    }
    held.look();
    held.write(row, kBlocks * kBytes);
    std::sort(live.begin(), live.end());
    for (const std::uint64_t address : live) allocator->deallocate(address, kBytes, lanes[0]);
    bench.rows.push_back(std::move(row));
}

}  // namespace bench
