// Driver calls that fail at every point of a swap: each chunk is still resident or swapped, with
// its bytes, and the next swap goes on.
#include <array>
#include <vector>

#include "swap_bench.h"

using namespace swap_bench;

namespace {

constexpr std::uint64_t kBytes = 2 * kMiB;  // of a chunk
constexpr std::uint32_t kChunks = 3;

// Calls that the engine makes while chunks move.
constexpr const char* kCalls[] = {
    "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuEventRecord",
    "cuEventSynchronize",   "cuStreamSynchronize",  "cuMemUnmap",
    "cuMemRelease",         "cuMemCreate",          "cuMemMap",
    "cuMemSetAccess",       "cuMemHostRegister_v2", "cuLaunchKernel",
    "cuMemsetD8Async",
};

// A program of chunks with different values, on a card that has room for twice as many.
class Bench {
  public:
    explicit Bench(const Card& card, bool hashes)
        : program(card, settings(hashes), 2 * kChunks * kBytes) {
        for (std::uint32_t number = 0; number < kChunks; ++number) {
            blocks.push_back(program.allocate(kBytes));
            program.make_resident(blocks.back(), kBytes);
        }
        renew();
    }
    static Settings settings(bool hashes) {
        Settings made = hashes ? hashing() : small();
        made.chunk_bytes = kBytes;
        made.host.slab_bytes = kBytes;  // each chunk registers its own
        return made;
    }

    // Of resident chunks, one keeps its value.
    void renew() {
        for (std::uint32_t number = 0; number < kChunks; ++number) {
            if (number != 1) ++values[number];
            program.write(blocks[number], kBytes, values[number]);
        }
        program.synchronize();
    }
    // One round out and in. True: every step was done; else the failure has a reason, or memory
    // that was not released is missing.
    bool round() {
        Failure why;
        std::uint64_t missing = 0;
        if (program.engine->swap_out(kEverything, program.credits, why) &&
            program.engine->swap_in(program.credits, missing, why) && program.engine->finish(why)) {
            return missing == 0;
        }
        CHECK(why.kind == Failure::Kind::driver || why.kind == Failure::Kind::out_of_memory);
        CHECK(!why.call.empty());
        return false;
    }
    // Without faults, from whatever state: everything comes back, with its bytes.
    void recover() {
        check_whole(*program.engine);
        Failure why;
        if (!program.engine->finish(why)) CHECK_EQUAL(why.message, "finished");
        const Usage usage = program.engine->usage();
        CHECK_EQUAL(usage.resident + usage.swapped, kChunks * kBytes);
        CHECK_EQUAL(program.swap_in(), 0U);
        check_values();
        program.check_credits();
        check_whole(*program.engine);
    }
    // After recover(): everything leaves and comes back, and nothing stays behind on the card.
    void check_swaps() {
        program.swap_out();
        CHECK_EQUAL(program.engine->usage().swapped, kChunks * kBytes);
        CHECK_EQUAL(program.credits.bytes, 2 * kChunks * kBytes);
        CHECK_EQUAL(program.engine->counters().card_bytes, 0U);
        CHECK_EQUAL(program.swap_in(), 0U);
        program.check_credits();
        check_whole(*program.engine);
    }

    void check_values() const {
        for (std::uint32_t number = 0; number < kChunks; ++number) {
            CHECK(Program::has(blocks[number], kBytes, values[number]));
        }
    }

    Program program;
    std::vector<std::uint64_t> blocks;
    std::array<std::uint32_t, kChunks> values{10, 20, 30};
};

}  // namespace

TEST(every_call_may_fail_once) {
    int failures = 0, survived = 0;
    for (const bool hashes : {false, true}) {
        const Card card(kWithData);
        for (const char* call : kCalls) {
            Bench bench(card, hashes);
            for (std::uint64_t nth = 1;; ++nth) {
                bench.renew();
                // Host memory has to be registered again.
                if (std::string_view(call) == "cuMemHostRegister_v2") {
                    bench.program.engine->trim_host();
                }
                gpu::sim().reset_call_counts();
                CHECK_EQUAL(gpu::sim().inject(call, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                const bool done = bench.round();
                gpu::sim().clear_faults();
                const bool reached = card.calls(call) >= nth;
                if (!reached) break;
                ++(done ? survived : failures);
                bench.recover();
            }
            bench.recover();
            bench.check_swaps();
        }
        check_order(card);
        check_nothing_left();
    }
    CHECK(failures > 30);
    CHECK(survived > 20);
}

TEST(every_call_may_fail_again_and_again) {
    for (const bool hashes : {false, true}) {
        const Card card(kWithData);
        for (const char* call : kCalls) {
            Bench bench(card, hashes);
            for (int nth = 1; nth < testing::rounds(2, 9); ++nth) {
                bench.renew();
                CHECK_EQUAL(gpu::sim().inject(call, static_cast<std::uint64_t>(nth), 1000,
                                              CUDA_ERROR_UNKNOWN, 0),
                            0);
                for (int round = 0; round < 3; ++round) bench.round();
                check_whole(*bench.program.engine);
                gpu::sim().clear_faults();
                bench.recover();
                bench.check_swaps();
            }
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(the_way_back_may_fail_too) {
    const Card card(kWithData);
    for (const char* first : {"cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2"}) {
        for (const char* second : {"cuMemUnmap", "cuMemRelease"}) {
            Bench bench(card, false);
            for (std::uint64_t nth = 1; nth <= kChunks; ++nth) {
                bench.program.swap_out();
                CHECK_EQUAL(gpu::sim().inject(first, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                CHECK_EQUAL(gpu::sim().inject(second, 1, 1000, CUDA_ERROR_UNKNOWN, 0), 0);
                std::uint64_t missing = 0;
                Failure why;
                CHECK(!bench.program.engine->swap_in(bench.program.credits, missing, why));
                CHECK_EQUAL(missing, (kChunks + 1 - nth) * kBytes);
                bench.program.check_credits();
                check_whole(*bench.program.engine);
                gpu::sim().clear_faults();
                bench.recover();
                bench.check_swaps();
            }
        }
    }
    check_order(card);
    check_nothing_left();
}

TEST(events_and_streams_may_fail_together) {
    const Card card(kWithData);
    {
        Bench bench(card, false);
        for (std::uint64_t nth = 1; nth <= kChunks + 1; ++nth) {
            bench.renew();
            CHECK_EQUAL(gpu::sim().inject("cuEventSynchronize", nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
            CHECK_EQUAL(gpu::sim().inject("cuStreamSynchronize", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
            CHECK(!bench.round());
            gpu::sim().clear_faults();
            bench.recover();
            bench.check_swaps();
        }
    }
    check_order(card);
    check_nothing_left();
}

TEST(what_a_failed_swap_in_left_on_the_card_goes_with_the_next_swap_out) {
    const Card card(kWithData);
    Bench bench(card, false);
    for (const char* first : {"cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2"}) {
        bench.program.swap_out();
        CHECK_EQUAL(gpu::sim().inject(first, 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        for (const char* undo : {"cuMemUnmap", "cuMemRelease"}) {
            CHECK_EQUAL(gpu::sim().inject(undo, 1, 1000, CUDA_ERROR_UNKNOWN, 0), 0);
        }
        std::uint64_t missing = 0;
        Failure why;
        CHECK(!bench.program.engine->swap_in(bench.program.credits, missing, why));
        gpu::sim().clear_faults();
        CHECK_EQUAL(bench.program.engine->counters().card_bytes, kBytes);
        bench.program.swap_out();
        CHECK_EQUAL(bench.program.engine->counters().card_bytes, 0U);
        CHECK_EQUAL(bench.program.credits.bytes, 2 * kChunks * kBytes);
        bench.recover();
    }
}

TEST(a_failed_swap_in_gives_its_memory_back) {
    const Card card(kWithData);
    Bench bench(card, false);
    for (const char* call : {"cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2"}) {
        bench.program.swap_out();
        CHECK_EQUAL(gpu::sim().inject(call, 2, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        std::uint64_t missing = 0;
        Failure why;
        CHECK(!bench.program.engine->swap_in(bench.program.credits, missing, why));
        gpu::sim().clear_faults();
        CHECK_EQUAL(bench.program.engine->counters().card_bytes, kBytes);
        CHECK_EQUAL(bench.program.credits.bytes, (2 * kChunks - 1) * kBytes);
        bench.recover();
    }
}

namespace {

// The first copy out has begun, and nobody could wait for it. With hashes, a wait comes before.
void leave_a_copy_under_way(Bench& bench, bool hashes) {
    CHECK_EQUAL(gpu::sim().inject("cuEventSynchronize", 1, 1000, CUDA_ERROR_UNKNOWN, 0), 0);
    CHECK_EQUAL(
        gpu::sim().inject("cuStreamSynchronize", hashes ? 2 : 1, 1000, CUDA_ERROR_UNKNOWN, 0), 0);
    Failure why;
    CHECK(!bench.program.engine->swap_out(kEverything, bench.program.credits, why));
    CHECK_EQUAL(why.call, "cuStreamSynchronize");
    gpu::sim().clear_faults();
}

}  // namespace

TEST(a_copy_that_nobody_could_wait_for_is_no_copy) {
    const Card card(kWithData);
    Bench bench(card, true);
    const auto before = bench.values;
    bench.check_swaps();  // now there are copies of these values
    bench.renew();
    leave_a_copy_under_way(bench, true);
    CHECK_EQUAL(bench.program.swap_in(), 0U);  // and waits for the copy
    // The old values again: the copies may have the new ones by now.
    bench.values = before;
    for (std::uint32_t number = 0; number < kChunks; ++number) {
        bench.program.write(bench.blocks[number], kBytes, before[number]);
    }
    bench.program.synchronize();
    bench.check_swaps();
    bench.check_values();
    check_order(card);
}

TEST(memory_is_freed_after_a_copy_that_nobody_could_wait_for) {
    const Card card(kWithData);
    {
        Bench bench(card, false);
        leave_a_copy_under_way(bench, false);
        for (const std::uint64_t block : bench.blocks) bench.program.free(block);
        CHECK_EQUAL(bench.program.credits.bytes, 2 * kChunks * kBytes);
    }
    check_order(card);
    check_nothing_left();
}

TEST(memory_that_cannot_be_unmapped_when_freed_is_so_later) {
    const Card card(kWithData);
    {
        Bench bench(card, false);
        CHECK_EQUAL(gpu::sim().inject("cuMemUnmap", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        bench.program.free(bench.blocks[0]);
        CHECK(!bench.program.engine->find(bench.blocks[0]));
        CHECK_EQUAL(bench.program.credits.bytes, kChunks * kBytes);
        check_whole(*bench.program.engine);
        bench.program.free(bench.blocks[1]);
        CHECK_EQUAL(bench.program.credits.bytes, (kChunks + 2) * kBytes);
        bench.program.check_credits();
    }
    check_order(card);
    check_nothing_left();
}

TEST(a_full_card_stops_a_swap_in_and_loses_nothing) {
    const Card card(kWithData);
    {
        Bench bench(card, false);
        bench.program.swap_out();
        const CUdeviceptr other = gpu::make_memory(252 * kMiB);  // somebody else, without credits
        std::uint64_t missing = 0;
        Failure why;
        CHECK(!bench.program.engine->swap_in(bench.program.credits, missing, why));
        CHECK(why.kind == Failure::Kind::out_of_memory);
        CHECK_EQUAL(why.call, "cuMemCreate");
        CHECK_EQUAL(missing, kBytes);
        CHECK_EQUAL(why.message,
                    "bringing chunks to the card stopped after 4 MiB of 6 MiB. Nothing is lost: "
                    "the rest is where it was");
        CHECK_EQUAL(card.call.cuMemFree_v2(other), CUDA_SUCCESS);
        bench.recover();
    }
    check_nothing_left();
}

TEST(an_engine_that_cannot_be_opened_leaves_nothing) {
    for (const char* call : {"cuMemAddressReserve", "cuDeviceTotalMem_v2", "cuEventCreate",
                             "cuStreamCreateWithPriority", "cuMemAlloc_v2", "cuMemHostAlloc"}) {
        const Card card(kWithData);
        Settings settings = Bench::settings(true);
        settings.address_bytes = 0;
        for (std::uint64_t nth = 1; nth < 3; ++nth) {
            gpu::sim().clear_faults();
            CHECK_EQUAL(gpu::sim().inject(call, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
            gpu::sim().reset_call_counts();
            Failure why;
            const auto engine = Engine::open(card.call, card.context, 0, settings, why);
            CHECK_EQUAL(engine == nullptr, card.calls(call) >= nth);
        }
        gpu::sim().clear_faults();
        check_nothing_left();
        CHECK_EQUAL(bench::figure(gpu::text_of(gpu::sim().live_objects), "streams"), 0U);
    }
}
