// What the workloads of the allocator benchmark say of held memory. Its gpu.h, not that of the
// tests, comes first here.
#include <map>
#include <memory>
#include <string>

#include "allocators_cases.h"
#include "allocators_pool.h"
#include "testing.h"

namespace {

using namespace bench;

using Details = std::map<std::string, double>;

GpuOptions simulated() {
    GpuOptions options;
    options.simulated = true;
    options.library = VRAMKIT_SIM_PATH;
    options.settings = "profile=h200,clock=virtual,checker=off,data=off";
    options.kernels = VRAMKIT_KERNELS;
    return options;
}

// One short repetition of each case; the details of its rows by workload.
class Program {
  public:
    Program() {
        GPU_CALL(gpu_, cuCtxGetCurrent, &bench.context);
        bench.repetitions = 1;
        bench.seconds = 0.001;
        bench.cap = 2 * GiB;
        bench.fill = 3 * GiB / 2;
    }
    std::map<std::string, Details> run() {
        std::map<std::string, Details> found;
        for (const Case& each : cases) {
            bench.rows.clear();
            each.measure(each.row);
            for (const Row& row : bench.rows) {
                found[row.workload] = Details(row.details.begin(), row.details.end());
            }
        }
        return found;
    }

  private:
    Gpu gpu_{simulated()};

  public:
    Bench bench{gpu_};
    Cases cases;
};

// Takes `kAhead` of the card when it is made, and a piece for each block.
class Plain {
  public:
    static constexpr std::uint64_t kAhead = 64 * MiB;
    static constexpr std::uint64_t kPiece = 2 * MiB;

    Plain(const Gpu& gpu, Takes takes) : gpu_(gpu), takes_(takes) {
        GPU_CALL(gpu_, cuMemAlloc_v2, &ahead_, kAhead);
    }
    ~Plain() { gpu_.call().cuMemFree_v2(ahead_); }
    Plain(const Plain&) = delete;
    Plain& operator=(const Plain&) = delete;

    std::uint64_t allocate(std::uint64_t bytes, const Lane&) {
        CUdeviceptr address = 0;
        GPU_CALL(gpu_, cuMemAlloc_v2, &address, (bytes + kPiece - 1) / kPiece * kPiece);
        return address;
    }
    void deallocate(std::uint64_t address, std::uint64_t, const Lane&) {
        GPU_CALL(gpu_, cuMemFree_v2, address);
    }
    Takes takes() const { return takes_; }

  private:
    const Gpu& gpu_;
    const Takes takes_;
    CUdeviceptr ahead_ = 0;
};

Details details_of_plain(Takes takes) {
    Program program;
    add_case(program.cases, "plain", "fragmentation", "ms", [&](const Row& row) {
        const auto make = [&](std::uint64_t) {
            return std::make_unique<Plain>(program.bench.gpu, takes);
        };
        measure_fragmentation(program.bench, row, make, [](auto&) {});
    });
    return program.run()["fragmentation"];
}

}  // namespace

TEST(held_is_what_the_card_lost_since_before_the_allocator) {
    const std::vector<std::uint64_t> sizes = filling_sizes(3 * GiB / 2);
    std::uint64_t in_use = 0;
    std::uint64_t held = Plain::kAhead;
    for (const std::uint64_t bytes : sizes) {
        in_use += bytes;
        held += (bytes + Plain::kPiece - 1) / Plain::kPiece * Plain::kPiece;
    }
    Details found = details_of_plain(Takes::as_needed);
    CHECK_EQUAL(found["in_use_mib"] * MiB, static_cast<double>(in_use));
    CHECK_EQUAL(found["held_mib"] * MiB, static_cast<double>(held));
    CHECK_EQUAL(found["held_over_in_use"], static_cast<double>(held) / static_cast<double>(in_use));
}

TEST(an_allocator_that_takes_ahead_has_no_ratio) {
    Details found = details_of_plain(Takes::ahead);
    CHECK(found["taken_ahead_mib"] > found["in_use_mib"]);
    CHECK(!found.contains("held_mib"));
    CHECK(!found.contains("held_over_in_use"));
}

TEST(an_empty_loop_has_no_figures) {
    Details found = details_of_plain(Takes::nothing);
    CHECK(!found.contains("in_use_mib"));
    CHECK(!found.contains("held_mib"));
}

TEST(the_peak_of_pairs_is_that_of_their_sequence) {
    const std::vector<Step> steps = pair_steps(kLargeSizes, 0);
    std::vector<std::uint64_t> live(kLiveBlocks);
    std::uint64_t sum = 0;
    for (std::size_t slot = 0; slot < kLiveBlocks; ++slot) sum += live[slot] = steps[slot].bytes;
    const std::uint64_t at_first = sum;
    std::uint64_t peak = sum;
    for (std::size_t i = 0; i < 1024; ++i) {
        sum -= live[steps[i].slot];
        sum += live[steps[i].slot] = steps[i].bytes;
        peak = std::max(peak, sum);
    }
    CHECK_EQUAL(pairs_in_use(kLargeSizes, 1, 0), at_first);
    CHECK_EQUAL(pairs_in_use(kLargeSizes, 1, 1024), peak);
    // Longer than the sequence: nothing new.
    CHECK_EQUAL(pairs_in_use(kLargeSizes, 1, 2 * kSteps), pairs_in_use(kLargeSizes, 1, 1e9));
    const std::uint64_t two = pairs_in_use(kLargeSizes, 2, 1024);
    CHECK(two > peak && two < peak + pairs_in_use(kLargeSizes, 1, kSteps) * 2);
}

TEST(the_pool_holds_at_least_what_is_in_use) {
    Program program;
    const std::shared_ptr<vramkit::Driver> driver = detail::open_driver(simulated());
    const auto make = [&](std::uint64_t cap) {
        vramkit::pool::Config config;
        config.limit = cap;
        return std::make_unique<Engine<Known>>(driver, program.bench, config);
    };
    add_pair_cases(program.cases, program.bench, "vramkit", make);
    add_stream_cases(program.cases, program.bench, "vramkit", make);
    add_memory_cases(program.cases, program.bench, "vramkit", make);
    std::map<std::string, Details> found = program.run();
    for (const char* workload :
         {"pair/small/1", "pair/large/1", "producer_consumer/1", "holes", "random_allocations",
          "multi_stream/1/cold", "multi_stream/4/warm", "fragmentation", "beside_kernel/growth",
          "phases/alone", "phases/touch"}) {
        Details& details = found[workload];
        CHECK(details["in_use_mib"] > 0);
        CHECK(details["held_mib"] >= details["in_use_mib"]);
        CHECK_EQUAL(details["held_over_in_use"], details["held_mib"] / details["in_use_mib"]);
    }
    // What several threads have in use at once is not exact.
    for (const char* workload : {"pair/small/16", "pair/large/16", "producer_consumer/8"}) {
        CHECK(found[workload]["held_over_in_use"] > 0.5);
    }
    CHECK_EQUAL(found["multi_stream/1/cold"]["in_use_mib"] * MiB, 8.0);
}
