// Driver calls that fail while handles are mapped, moved and unmapped: bytes and addresses survive,
// and what failed can be done again.
#include <vector>

#include "swap_bench.h"

using namespace swap_bench;

namespace {

constexpr std::uint64_t kBytes = 4 * kMiB;  // of a handle: two chunks
constexpr std::uint64_t kZeros = 2 * kMiB;
constexpr std::uint64_t kCard = 64 * kMiB;

constexpr const char* kCalls[] = {"cuMemCreate",          "cuMemMap",
                                  "cuMemSetAccess",       "cuMemUnmap",
                                  "cuMemRelease",         "cuMemsetD8Async",
                                  "cuEventRecord",        "cuEventSynchronize",
                                  "cuStreamSynchronize",  "cuLaunchKernel",
                                  "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2",
                                  "cuDeviceGetCount",     "cuMemHostRegister_v2"};

// One handle that stays, at one address, with one value; another that comes and goes; and an
// allocation of zeros.
class Bench {
  public:
    explicit Bench(const Card& card) : own(card, 64 * kMiB), program(card, settings(), kCard) {
        zeros = program.allocate(kZeros);
        stays = program.create(kBytes);
        program.map(stays, home(0), kBytes);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        program.write(zeros, kZeros, 0);
        renew();
    }
    static Settings settings() {
        Settings made = hashing();
        made.chunk_bytes = made.host.slab_bytes = 2 * kMiB;
        return made;
    }
    std::uint64_t home(int number) const {
        return own.address + static_cast<std::uint64_t>(number) * kBytes;
    }
    void renew() {
        ++value;
        program.write(home(0), kBytes, value);
        program.synchronize();
    }

    // Each step again without faults, once it has failed: it must succeed then, whatever the
    // failure has left. Steps that the driver does not see cannot fail.
    template <typename Step>
    void must(Step step) {
        Failure why;
        if (step(why)) return;
        CHECK(why.kind == Failure::Kind::driver || why.kind == Failure::Kind::out_of_memory);
        CHECK(why.code != CUDA_SUCCESS);
        CHECK(!why.call.empty());
        ++failures;
        check_whole(*program.engine);
        program.check_credits();
        gpu::sim().clear_faults();
        why = {};
        if (!step(why)) CHECK_EQUAL(std::string(why.call) + why.message, "done at last");
    }
    void round() {
        Engine& engine = *program.engine;
        const CUmemAccessDesc access = access_of(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        const auto map = [&](std::uint64_t id, int number) {
            must([&](Failure& why) { return engine.map(id, home(number), kBytes, why); });
            must([&](Failure& why) {
                return engine.set_access(home(number), kBytes, {&access, 1}, why);
            });
        };
        const auto unmap = [&](int number, int count) {
            must([&](Failure& why) {
                std::uint64_t freed = 0;
                const std::uint64_t bytes = static_cast<std::uint64_t>(count) * kBytes;
                const bool done = engine.unmap(home(number), bytes, freed, why);
                program.credits.give(freed);
                return done;
            });
        };
        const auto bring = [&] {
            must([&](Failure& why) {
                std::uint64_t missing = 0;
                return engine.make_all_resident(program.credits, missing, why) &&
                       engine.finish(why) && missing == 0;
            });
        };
        map(stays, 1);  // on the card
        const std::uint64_t comes = program.create(kBytes);
        map(comes, 2);  // not yet
        bring();
        // By calls that do not fail here.
        const DriverTable& call = program.card.call;
        CHECK_EQUAL(call.cuMemsetD32_v2(home(2), value + 1, kBytes / 4), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuCtxSynchronize(), CUDA_SUCCESS);
        must([&](Failure& why) { return engine.swap_out(kEverything, program.credits, why); });
        map(stays, 3);
        bring();
        CHECK_EQUAL(engine.bytes_to_come(), 0U);
        for (const int number : {0, 1, 3}) CHECK(Program::has(home(number), kBytes, value));
        CHECK(Program::has(home(2), kBytes, value + 1));
        CHECK(Program::has(zeros, kZeros, 0));
        unmap(1, 3);
        CHECK(!engine.owns_mapping(home(1), 3 * kBytes));
        CHECK(gpu::sim().host_alias(home(1)) == nullptr);
        CHECK(Program::has(home(0), kBytes, value));
        must([&](Failure& why) {
            std::uint64_t freed = 0;
            const bool done = engine.release(comes, freed, why);
            program.credits.give(freed);
            return done;
        });
    }
    // Without faults: nothing stays behind.
    void recover() {
        check_whole(*program.engine);
        program.swap_out();
        CHECK_EQUAL(program.credits.bytes, kCard);
        CHECK_EQUAL(program.engine->counters().card_bytes, 0U);
        CHECK_EQUAL(program.engine->counters().allocated, kZeros + kBytes);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        CHECK(Program::has(home(0), kBytes, value));
        program.check_credits();
        check_whole(*program.engine);
    }

    const Reservation own;
    Program program;
    std::uint64_t zeros = 0, stays = 0;
    std::uint32_t value = 0;
    int failures = 0;
};

}  // namespace

TEST(every_call_may_fail_once_or_again_and_again) {
    int failures = 0;
    const Card card(kWithData);
    for (const std::uint64_t times : {1, 1000}) {
        for (const char* call : kCalls) {
            Bench bench(card);
            for (std::uint64_t nth = 1;; nth += testing::kFewer) {
                bench.renew();
                if (std::string_view(call) == "cuMemHostRegister_v2") {
                    bench.program.engine->trim_host();
                }
                gpu::sim().reset_call_counts();
                CHECK_EQUAL(gpu::sim().inject(call, nth, times, CUDA_ERROR_UNKNOWN, 0), 0);
                bench.round();
                gpu::sim().clear_faults();
                bench.recover();
                // Long runs differ at their beginning only.
                if (card.calls(call) < nth || (times == 1000 && nth > 1)) break;
            }
            failures += bench.failures;
        }
    }
    check_order(card);
    check_nothing_left();
    CHECK(failures > 80 / testing::kFewer);
}

TEST(the_way_back_may_fail_too) {
    const Card card(kWithData);
    for (const char* first : {"cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuMemUnmap"}) {
        for (const char* second : {"cuMemUnmap", "cuMemRelease", "cuMemMap", "cuMemSetAccess"}) {
            if (std::string_view(first) == second) continue;
            Bench bench(card);
            for (std::uint64_t nth = 1; nth < 6; nth += testing::kFewer) {
                bench.renew();
                CHECK_EQUAL(gpu::sim().inject(first, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                CHECK_EQUAL(gpu::sim().inject(second, nth, 1000, CUDA_ERROR_UNKNOWN, 0), 0);
                bench.round();
                gpu::sim().clear_faults();
                bench.recover();
            }
        }
    }
    check_order(card);
    check_nothing_left();
}

// One chunk is gone from the card, the other is not, and the first cannot be put back.
TEST(a_mapping_that_is_half_gone_goes_later) {
    const Card card(kWithData);
    {
        Bench bench(card);
        Engine& engine = *bench.program.engine;
        Failure why;
        std::uint64_t freed = 0;
        CHECK_EQUAL(gpu::sim().inject("cuMemUnmap", 2, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        CHECK(!engine.unmap(bench.home(0), kBytes, freed, why));
        CHECK(Program::has(bench.home(0), kBytes, bench.value));  // as before
        gpu::sim().clear_faults();
        CHECK_EQUAL(gpu::sim().inject("cuMemUnmap", 2, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        CHECK_EQUAL(gpu::sim().inject("cuMemMap", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        CHECK(!engine.unmap(bench.home(0), kBytes, freed, why));
        gpu::sim().clear_faults();
        check_whole(engine);
        CHECK(!engine.handle_at(bench.home(0)));
        // Its addresses are free again with the next call.
        bench.program.map(bench.stays, bench.home(0), kBytes);
        CHECK(Program::has(bench.home(0), kBytes, bench.value));
        bench.recover();
    }
    check_order(card);
    check_nothing_left();
}

// A chunk that lost one address, and not the next, is swapped with what is left of it.
TEST(a_chunk_that_is_half_unmapped_comes_back_whole) {
    const Card card(kWithData);
    for (std::uint64_t nth = 1; nth <= 7; ++nth) {
        Bench bench(card);
        bench.program.map(bench.stays, bench.home(1), kBytes);
        CHECK_EQUAL(gpu::sim().inject("cuMemUnmap", nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        Failure why;
        CHECK(!bench.program.engine->swap_out(kEverything, bench.program.credits, why));
        gpu::sim().clear_faults();
        check_whole(*bench.program.engine);
        bench.program.check_credits();
        CHECK_EQUAL(bench.program.make_all_resident(), 0U);
        for (const int number : {0, 1}) {
            CHECK(Program::has(bench.home(number), kBytes, bench.value));
        }
        CHECK(Program::has(bench.zeros, kZeros, 0));
        bench.recover();
    }
    check_order(card);
    check_nothing_left();
}
