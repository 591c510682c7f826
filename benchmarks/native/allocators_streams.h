// RMM's two benchmarks by their parameters: random allocations on one stream, and small blocks
// beside kernels on several.
#pragma once

#include <span>

#include "allocators_bench.h"
#include "allocators_held.h"
#include "allocators_sequences.h"

namespace bench {

// Milliseconds of one whole run. The first run finds the allocator as it was made.
template <class Maker>
void measure_random_allocations(Bench& bench, Row row, std::uint32_t count, std::uint64_t largest,
                                Maker make) {
    const RandomAllocations work = random_allocations(count, largest);
    std::vector<std::uint64_t> addresses(work.bytes.size());
    const Lanes lanes(bench.gpu, 1);
    HeldMemory held(bench);
    const auto allocator = held.make(make);
    const std::span all(work.operations);
    const auto run = [&](std::span<const RandomOperation> operations) {
        for (const RandomOperation operation : operations) {
            const std::uint64_t bytes = work.bytes[operation.block];
            std::uint64_t& address = addresses[operation.block];
            if (operation.allocate) {
                address = must(allocator->allocate(bytes, lanes[0]));
            } else {
                allocator->deallocate(address, bytes, lanes[0]);
            }
        }
    };
    for (int repetition = -1; repetition < bench.repetitions; ++repetition) {
        const double start = steady_ns();
        run(all);
        const double milliseconds = (steady_ns() - start) * 1e-6;
        if (repetition < 0) {
            row.details = {{"first_run_ms", milliseconds},
                           {"calls", static_cast<double>(work.operations.size())}};
        } else {
            row.values.push_back(milliseconds);
        }
    }
    // Once more off the clock, to look where most is in use.
    run(all.first(work.to_most_live));
    held.look();
    run(all.subspan(work.to_most_live));
    held.write(row, work.most_live);
    bench.rows.push_back(std::move(row));
}

// Four kernels that spin for half a millisecond, on the streams in turn; before each one 8 bytes
// are allocated on its stream and behind it they are freed. Milliseconds until the card is done.
// Warm: one allocator, and each stream had a block before. Cold: a new allocator each time.
template <class Maker>
void measure_multi_stream(Bench& bench, Row row, std::size_t streams, bool warm, Maker make) {
    constexpr std::size_t kKernels = 4;
    constexpr std::uint64_t kSpinNs = 500'000;
    constexpr std::uint64_t kBytes = 8;
    const Lanes lanes(bench.gpu, streams);
    const auto once = [&](auto& allocator) {
        bench.synchronize();
        const double start = bench.gpu.now();
        for (std::size_t kernel = 0; kernel < kKernels; ++kernel) {
            const Lane& lane = lanes[kernel % streams];
            const std::uint64_t block = must(allocator.allocate(kBytes, lane));
            bench.gpu.spin(kSpinNs, 1, 32, lane.handle);
            allocator.deallocate(block, kBytes, lane);
        }
        bench.synchronize();
        return (bench.gpu.now() - start) * 1e-6;
    };
    HeldMemory held(bench);
    auto allocator = held.make(make);
    if (warm) {
        for (std::size_t i = 0; i < streams; ++i) {
            allocator->deallocate(must(allocator->allocate(kBytes, lanes[i])), kBytes, lanes[i]);
        }
    }
    for (int repetition = -1; repetition < bench.repetitions; ++repetition) {
        if (!warm) {
            allocator.reset();  // before the next is made: one alone may have half the card
            allocator = held.make(make);
        }
        const double milliseconds = once(*allocator);
        if (repetition >= 0) row.values.push_back(milliseconds);
    }
    held.look();  // not between repetitions: half a millisecond would feel it
    row.details = {{"ideal_ms",
                    static_cast<double>(kSpinNs) * 1e-6 * kKernels / static_cast<double>(streams)}};
    held.write(row, kBytes);
    bench.rows.push_back(std::move(row));
}

}  // namespace bench
