// Workloads about where memory is and how long its return takes: a full card with holes, a burst,
// and calls beside a running kernel.
#pragma once

#include <algorithm>
#include <memory>

#include "allocators_bench.h"
#include "allocators_held.h"
#include "allocators_sequences.h"

namespace bench {

// An allocator that may have `cap` of the card hands out `fill` in blocks, every second one is
// freed, and 90 % of what was freed is asked for in one piece. `tidy` runs before the request, off
// the clock.
template <class Maker, class Tidy>
void measure_fragmentation(Bench& bench, Row row, Maker make, Tidy tidy) {
    const std::vector<std::uint64_t> sizes = filling_sizes(bench.fill);
    const Lanes lanes(bench.gpu, 1);
    int served = 0;
    std::vector<double> refused_ms;
    HeldMemory held(bench);
    Block sum[2];  // of all and of the freed ones: their number as address
    for (int repetition = 0; repetition < bench.repetitions; ++repetition) {
        const auto allocator = held.make(make, bench.cap);
        std::vector<Block> blocks;
        sum[0] = sum[1] = {};
        for (const std::uint64_t bytes : sizes) {
            const std::uint64_t address = allocator->allocate(bytes, lanes[0]);
            if (address == 0) break;
            blocks.push_back({address, bytes});
            sum[0] = {sum[0].address + 1, sum[0].bytes + bytes};
        }
        if (blocks.size() < 2) throw Failure("the cap does not hold two blocks");
        held.look();
        for (std::size_t i = 1; i < blocks.size(); i += 2) {
            allocator->deallocate(blocks[i].address, blocks[i].bytes, lanes[0]);
            sum[1] = {sum[1].address + 1, sum[1].bytes + blocks[i].bytes};
        }
        bench.synchronize();
        tidy(*allocator);
        const std::uint64_t asked = sum[1].bytes / 10 * 9;
        const double start = bench.gpu.now();
        const std::uint64_t large = allocator->allocate(asked, lanes[0]);
        const double milliseconds = (bench.gpu.now() - start) * 1e-6;
        held.look();
        if (large != 0) {
            ++served;
            row.values.push_back(milliseconds);
            allocator->deallocate(large, asked, lanes[0]);
        } else {
            refused_ms.push_back(milliseconds);
        }
        for (std::size_t i = 0; i < blocks.size(); i += 2) {
            allocator->deallocate(blocks[i].address, blocks[i].bytes, lanes[0]);
        }
    }
    row.outcome = served == bench.repetitions ? "served"
                  : served > 0                ? "at times"
                                              : "out of memory";
    row.details = {{"cap_bytes", static_cast<double>(bench.cap)},
                   {"blocks", static_cast<double>(sum[0].address)},
                   {"filled_bytes", static_cast<double>(sum[0].bytes)},
                   {"freed_bytes", static_cast<double>(sum[1].bytes)},
                   {"asked_bytes", static_cast<double>(sum[1].bytes / 10 * 9)},
                   {"most_card_bytes", held.most_bytes()},
                   {"served", static_cast<double>(served)},
                   {"refused_after_ms", quantile(refused_ms, 0.5)}};
    held.write(row, sum[0].bytes);  // the request is for less than what was freed before it
    bench.rows.push_back(std::move(row));
}

// Card memory above what was held before a burst, after it was wholly freed: at once, after the
// time for settling, and after `trim`. MiB.
template <class Maker, class Trim>
void measure_burst(Bench& bench, Row row, Maker make, Trim trim) {
    constexpr std::uint64_t kBurst = std::uint64_t{16} << 30;
    const Lanes lanes(bench.gpu, 1);
    std::vector<double> at_once;
    std::vector<double> trimmed;
    HeldMemory held(bench);
    InUse in_use;
    for (int repetition = 0; repetition < bench.repetitions; ++repetition) {
        const auto allocator = held.make(make);
        Generator random(11);
        const auto take = [&](std::uint64_t total) {
            std::vector<Block> blocks;
            for (std::uint64_t sum = 0; sum < total; sum += blocks.back().bytes) {
                const std::uint64_t bytes = random.log_uniform(256, kLargeSizes.most);
                blocks.push_back({must(allocator->allocate(bytes, lanes[0])), bytes});
                in_use.allocate(bytes, lanes[0]);
            }
            return blocks;
        };
        const auto give = [&](const std::vector<Block>& blocks) {
            for (const Block& block : blocks) {
                allocator->deallocate(block.address, block.bytes, lanes[0]);
                in_use.deallocate(block.address, block.bytes, lanes[0]);
            }
        };
        const auto working_set = take(std::uint64_t{1} << 30);
        const auto before = static_cast<double>(bench.card_bytes());
        const auto burst = take(kBurst);
        held.look();
        give(burst);
        bench.synchronize();
        const auto above = [&] {
            return (static_cast<double>(bench.card_bytes()) - before) / static_cast<double>(MiB);
        };
        at_once.push_back(above());
        bench.settle();
        row.values.push_back(above());
        trim(*allocator);
        trimmed.push_back(above());
        give(working_set);
    }
    row.details = {{"burst_mib", static_cast<double>(kBurst / MiB)},
                   {"at_once_mib", quantile(at_once, 0.5)},
                   {"settle_ms", static_cast<double>(bench.settle_ms)},
                   {"after_trim_mib", quantile(trimmed, 0.5)}};
    held.write(row, in_use.peak());
    bench.rows.push_back(std::move(row));
}

// Single calls beside a kernel of one second: pairs of 256 B to 64 MiB on the kernel's stream and
// on another, and every so often a step of growth, 1 MiB to 1 GiB, all steps live together.
// Microseconds; three rows: allocations, frees, and the allocations that grow, which also says what
// was held.
template <class Maker>
void measure_beside_kernel(Bench& bench, const Row& row, Maker make) {
    constexpr double kKernelNs = 1e9;
    constexpr std::size_t kPairsToGrowth = 500;
    constexpr std::uint64_t kLargestGrowth = std::uint64_t{1} << 30;
    // Simulated time stands still between driver calls; the pairs are counted there.
    const std::size_t most_pairs = bench.gpu.simulated() ? 100'000 : 2'000'000;
    const SizeRange sizes{"", "", kSmallSizes.least, kLargeSizes.most};
    const std::vector<Step> steps = pair_steps(sizes, 0);
    const Lanes lanes(bench.gpu, 2);

    enum Kind { allocation, release, growth, kKinds };
    const char* const names[kKinds] = {"/allocate", "/free", "/growth"};
    std::vector<double> tails[kKinds];
    std::vector<double> middles[kKinds];
    std::vector<double> hundredths[kKinds];
    double worst[kKinds] = {};
    double counts[kKinds] = {};
    double covered_ns = kKernelNs;
    bool outlasted = true;
    HeldMemory held(bench);
    InUse in_use;  // counts between the calls, each of which is timed by itself
    for (int repetition = 0; repetition < bench.repetitions; ++repetition) {
        const auto allocator = held.make(make);
        std::vector<double> samples[kKinds];
        for (auto& kind : samples) kind.reserve(most_pairs);
        const auto take = [&](std::uint64_t bytes, const Lane& lane, Kind kind) {
            const double start = bench.gpu.now();
            const std::uint64_t address = allocator->allocate(bytes, lane);
            samples[kind].push_back((bench.gpu.now() - start) * 1e-3);
            in_use.allocate(bytes, lane);
            return Block{must(address), bytes};
        };
        const auto give = [&](const Block& block, const Lane& lane) {
            const double start = bench.gpu.now();
            allocator->deallocate(block.address, block.bytes, lane);
            samples[release].push_back((bench.gpu.now() - start) * 1e-3);
            in_use.deallocate(block.address, block.bytes, lane);
        };
        Block live[2][kLiveBlocks];
        std::vector<std::pair<Block, std::size_t>> grown;
        std::uint64_t next_growth = MiB;
        const auto busy = [&] {
            const CUresult answer = bench.gpu.call().cuStreamQuery(lanes[0].handle);
            if (answer != CUDA_ERROR_NOT_READY) bench.gpu.check(answer, "cuStreamQuery");
            return answer == CUDA_ERROR_NOT_READY;
        };
        bench.synchronize();
        const double start = bench.gpu.now();
        bench.gpu.spin(static_cast<std::uint64_t>(kKernelNs), 1, 32, lanes[0].handle);
        std::size_t pairs = 0;
        // Ends short of the kernel's end: a call that waits for it takes the run past it.
        while (pairs < most_pairs && bench.gpu.now() - start < 0.95 * kKernelNs) {
            const Step step = steps[pairs % kSteps];
            const std::size_t lane = pairs % 2;
            Block& block = live[lane][step.slot];
            if (block.address != 0) give(block, lanes[lane]);
            block = take(step.bytes, lanes[lane], allocation);
            if (++pairs % kPairsToGrowth != 0) continue;
            if (next_growth <= kLargestGrowth) {
                const std::size_t where = grown.size() % 2;
                grown.emplace_back(take(next_growth, lanes[where], growth), where);
                if (where == 1) next_growth *= 2;
            }
        }
        covered_ns = std::min(covered_ns, bench.gpu.now() - start);
        for (const auto& [block, lane] : grown) give(block, lanes[lane]);
        for (std::size_t lane = 0; lane < 2; ++lane) {
            for (const Block& block : live[lane]) {
                if (block.address != 0) give(block, lanes[lane]);
            }
        }
        outlasted = outlasted && busy();
        // Behind that question, whose answer it could change by waiting for the kernel. The blocks
        // are freed by now, but the kernel's stream has them until it ends.
        held.look();
        bench.synchronize();
        for (int kind = 0; kind < kKinds; ++kind) {
            auto& sorted = samples[kind];
            if (sorted.empty()) continue;
            std::sort(sorted.begin(), sorted.end());
            const auto last = static_cast<double>(sorted.size() - 1);
            const auto at = [&](double fraction) {
                return sorted[static_cast<std::size_t>(std::ceil(fraction * last))];
            };
            middles[kind].push_back(at(0.5));
            hundredths[kind].push_back(at(0.99));
            tails[kind].push_back(at(0.999));
            worst[kind] = std::max(worst[kind], sorted.back());
            counts[kind] += last + 1;
        }
    }
    for (int kind = 0; kind < kKinds; ++kind) {
        Row each = row;
        each.workload += names[kind];
        each.values = tails[kind];
        each.outcome =
            outlasted ? "the kernel outlasted the calls" : "a call waited for the kernel";
        each.details = {{"p50_us", quantile(middles[kind], 0.5)},
                        {"p99_us", quantile(hundredths[kind], 0.5)},
                        {"p99.9_us", quantile(tails[kind], 0.5)},
                        {"max_us", worst[kind]},
                        {"calls", counts[kind]},
                        {"covered_ms", covered_ns * 1e-6}};
        if (kind == growth) held.write(each, in_use.peak());
        bench.rows.push_back(std::move(each));
    }
}

}  // namespace bench
