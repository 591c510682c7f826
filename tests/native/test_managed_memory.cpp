// Memory of a program that shares its card in the modes prefetch and paged: what moves, when its
// credits change hands, and that no failed prefetch changes a byte.
#include <vector>

#include "share/managed_memory.h"
#include "swap_bench.h"

using namespace swap_bench;
using vramkit::share::ManagedMemory;
using vramkit::share::Memory;

namespace {

const ManagedMemory::Prefetching kPrefetch{true, true, 0};
const ManagedMemory::Prefetching kPaged{false, false, 0};

std::uint64_t free_bytes(const DriverTable& call) {
    size_t free = 0, total = 0;
    CHECK_EQUAL(call.cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
}

// Credits of what leaves. They come too early where the card has not so much room yet.
class Room final : public swap::Credits {
  public:
    explicit Room(const Card& card) : card_(card), before_(free_bytes(card.call)) {}
    bool take(std::uint64_t) override { return false; }
    void give(std::uint64_t given) override {
        bytes += given;
        gifts.push_back(given);
        if (free_bytes(card_.call) < before_ + bytes) ++too_early;
    }

    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> gifts;
    int too_early = 0;

  private:
    const Card& card_;
    const std::uint64_t before_;
};

class Bench {
  public:
    Bench(const Card& on, const ManagedMemory::Prefetching& how, std::uint64_t card_bytes)
        : Bench(on, on.call, how, card_bytes) {}
    Bench(const Card& on, const DriverTable& calls, const ManagedMemory::Prefetching& how,
          std::uint64_t card_bytes)
        : card(on), credits(card_bytes), card_bytes_(card_bytes) {
        Failure why;
        memory = ManagedMemory::open(calls, on.context, 0, how, why);
        REQUIRE(memory != nullptr);
    }

    std::uint64_t allocate(std::uint64_t bytes) const {
        Failure why;
        const std::uint64_t address = memory->allocate(bytes, why);
        CHECK(address != 0);
        return address;
    }
    void free(std::uint64_t address) {
        std::uint64_t freed = 0;
        Failure why;
        CHECK(memory->free(address, freed, why));
        credits.give(freed);
    }
    // Returns what credits did not suffice for.
    std::uint64_t bring() {
        std::uint64_t missing = 0;
        Failure why;
        CHECK(memory->bring(credits, missing, why));
        CHECK(memory->finish(why));
        CHECK_EQUAL(memory->bytes_to_come(), missing);
        return missing;
    }
    bool move_out(std::uint64_t bytes = kEverything) {
        Failure why;
        return memory->move_out(bytes, credits, why);
    }
    // What is counted is all there is, and what is on the card has its credits.
    void check_credits(std::uint64_t of_all) const {
        const Usage usage = memory->usage();
        CHECK_EQUAL(usage.unbacked + usage.swapped + usage.resident, of_all);
        CHECK_EQUAL(usage.unbacked + usage.swapped, memory->bytes_to_come());
        CHECK_EQUAL(usage.resident, memory->card_bytes());
        CHECK_EQUAL(credits.bytes + usage.resident, card_bytes_);
    }
    std::uint64_t prefetches() const {
        return card.calls("cuMemPrefetchAsync") + card.calls("cuMemPrefetchAsync_v2");
    }

    const Card& card;
    Free credits;
    std::unique_ptr<Memory> memory;

  private:
    const std::uint64_t card_bytes_;
};

void write(const Card& card, std::uint64_t address, std::uint64_t bytes, unsigned value) {
    CHECK_EQUAL(card.call.cuMemsetD32Async(address, value, bytes / 4, VRAMKIT_STREAM_PER_THREAD),
                CUDA_SUCCESS);
    CHECK_EQUAL(card.call.cuStreamSynchronize(VRAMKIT_STREAM_PER_THREAD), CUDA_SUCCESS);
}

}  // namespace

TEST(new_memory_comes_as_credits_allow_and_none_is_moved_for_it) {
    const Card card(kOrdered);
    {
        Bench bench(card, kPrefetch, 100 * kMiB);
        const std::uint64_t before = free_bytes(card.call);
        bench.allocate(80 * kMiB);
        bench.allocate(40 * kMiB);
        CHECK_EQUAL(bench.memory->usage().unbacked, 120 * kMiB);
        CHECK_EQUAL(free_bytes(card.call), before);
        CHECK_EQUAL(bench.bring(), 20 * kMiB);
        CHECK_EQUAL(free_bytes(card.call), before - 100 * kMiB);
        bench.check_credits(120 * kMiB);
        CHECK_EQUAL(bench.memory->traffic().in, 0U);  // made on the card
        bench.credits.bytes += 20 * kMiB;
        CHECK_EQUAL(bench.bring(), 0U);
    }
    check_order(card);
    check_nothing_left();
}

TEST(the_oldest_leaves_first_by_no_more_than_what_is_asked) {
    const Card card(kOrdered);
    {
        Bench bench(card, kPrefetch, 512 * kMiB);
        const std::uint64_t old = bench.allocate(40 * kMiB), young = bench.allocate(200 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        CHECK(bench.move_out(51 * kMiB));
        CHECK_EQUAL(bench.memory->usage().swapped, 52 * kMiB);  // whole pages
        CHECK_EQUAL(bench.memory->traffic().out, 52 * kMiB);
        bench.check_credits(240 * kMiB);
        std::uint64_t freed = 0;
        Failure why;
        CHECK(bench.memory->free(old, freed, why));
        CHECK_EQUAL(freed, 0U);  // all of it had left
        CHECK(bench.memory->free(young, freed, why));
        CHECK_EQUAL(freed, 188 * kMiB);
    }
    check_order(card);
    check_nothing_left();
}

TEST(credits_of_pages_are_given_in_steps_and_when_they_have_left) {
    const Card card(kOrdered);
    {
        Bench bench(card, kPrefetch, 512 * kMiB);
        bench.allocate(100 * kMiB);
        bench.allocate(100 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        Room room(card);
        Failure why;
        CHECK(bench.memory->move_out(kEverything, room, why));
        CHECK(
            (room.gifts == std::vector<std::uint64_t>{64 * kMiB, 64 * kMiB, 64 * kMiB, 8 * kMiB}));
        CHECK_EQUAL(room.too_early, 0);
        bench.credits.give(room.bytes);
        CHECK_EQUAL(bench.bring(), 0U);
        CHECK_EQUAL(bench.memory->traffic().in, 200 * kMiB);
    }
    check_order(card);
    check_nothing_left();
}

TEST(many_small_allocations_leave_in_one_step) {
    const Card card(kOrdered);
    {
        Bench bench(card, kPrefetch, 512 * kMiB);
        for (int number = 0; number < 100; ++number) bench.allocate(1000);
        CHECK_EQUAL(bench.bring(), 0U);
        bench.credits.gifts = 0;
        CHECK(bench.move_out());
        CHECK_EQUAL(bench.credits.gifts, 1);
        CHECK_EQUAL(bench.prefetches(), 200U);
    }
    check_nothing_left();
}

TEST(paged_memory_changes_hands_and_is_not_moved) {
    const Card card(kOrdered);
    {
        Bench bench(card, kPaged, 100 * kMiB);
        const std::uint64_t block = bench.allocate(60 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        CHECK_EQUAL(bench.credits.bytes, 40 * kMiB);
        CHECK(bench.move_out());
        CHECK_EQUAL(bench.credits.bytes, 100 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        CHECK_EQUAL(bench.prefetches(), 0U);
        CHECK_EQUAL(bench.memory->traffic().out + bench.memory->traffic().in, 0U);
        bench.free(block);
        CHECK_EQUAL(bench.credits.bytes, 100 * kMiB);
    }
    check_nothing_left();
}

TEST(nothing_more_leaves_when_the_limit_of_host_memory_is_reached) {
    const Card card(kOrdered);
    {
        Bench bench(card, {true, true, 50 * kMiB}, 512 * kMiB);
        bench.allocate(100 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        CHECK(bench.move_out(50 * kMiB));
        CHECK(!bench.move_out(2 * kMiB));
        CHECK_EQUAL(bench.memory->usage().swapped, 50 * kMiB);
    }
    check_nothing_left();
}

TEST(nothing_more_leaves_than_the_host_has_room_for) {
    const Card card(kOrdered);
    {
        std::uint64_t left = 30 * kMiB + 1;
        ManagedMemory::Prefetching prefetching = kPrefetch;
        prefetching.room = [&] {
            return swap::HostRoom{swap::kSparedOnHost + left, "the group of this test"};
        };
        Bench bench(card, prefetching, 512 * kMiB);
        bench.allocate(100 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        Failure why;
        CHECK(!bench.memory->move_out(40 * kMiB, bench.credits, why));
        CHECK(why.kind == Failure::Kind::out_of_memory);
        CHECK_EQUAL(why.message,
                    "the host has 542 MiB left by the group of this test, of which 512 MiB are "
                    "spared; swapped data needs 40 MiB more");
        CHECK_EQUAL(bench.memory->usage().swapped, 30 * kMiB);
        left = 0;
        CHECK(!bench.move_out(2 * kMiB));
        left = 2 * kMiB;
        CHECK(bench.move_out(2 * kMiB));
        CHECK_EQUAL(bench.memory->usage().swapped, 32 * kMiB);
    }
    check_nothing_left();
}

TEST(drivers_without_the_newer_call_prefetch_too) {
    const Card card(kOrdered);
    {
        DriverTable older = card.call;
        older.cuMemPrefetchAsync_v2 = nullptr;
        Bench bench(card, older, kPrefetch, 512 * kMiB);
        bench.allocate(32 * kMiB);
        const std::uint64_t before = free_bytes(card.call);
        CHECK_EQUAL(bench.bring(), 0U);
        CHECK_EQUAL(free_bytes(card.call), before - 32 * kMiB);
        CHECK(bench.move_out());
        CHECK_EQUAL(free_bytes(card.call), before);
        CHECK(card.calls("cuMemPrefetchAsync") > 0);
        CHECK_EQUAL(card.calls("cuMemPrefetchAsync_v2"), 0U);
    }
    check_nothing_left();
}

TEST(a_driver_without_managed_memory_is_refused) {
    const Card card(kOrdered);
    DriverTable older = card.call;
    older.cuMemAllocManaged = nullptr;
    Failure why;
    CHECK(ManagedMemory::open(older, card.context, 0, kPrefetch, why) == nullptr);
    CHECK_EQUAL(why.code, CUDA_ERROR_NOT_SUPPORTED);
}

TEST(calls_that_fail_leave_every_byte_and_its_credits) {
    const Card card(kWithData);
    for (const char* call :
         {"cuMemPrefetchAsync_v2", "cuEventRecord", "cuEventSynchronize", "cuStreamSynchronize"}) {
        Bench bench(card, kPrefetch, 200 * kMiB);
        const std::uint64_t one = bench.allocate(70 * kMiB), two = bench.allocate(4 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        for (std::uint64_t nth = 1; nth <= 6; ++nth) {
            const auto value = static_cast<unsigned>(nth);
            write(card, one, 70 * kMiB, value);
            write(card, two, 4 * kMiB, value + 1);
            // Together a wait for an event and for the stream fail: the step is not over.
            for (const char* each : {call, "cuEventSynchronize"}) {
                CHECK_EQUAL(gpu::sim().inject(each, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
            }
            std::uint64_t missing = 0;
            Failure why;
            bench.move_out();
            bench.check_credits(74 * kMiB);
            bench.memory->bring(bench.credits, missing, why);
            bench.memory->finish(why);
            bench.check_credits(74 * kMiB);
            gpu::sim().clear_faults();
            CHECK_EQUAL(bench.bring(), 0U);
            CHECK(Program::has(one, 70 * kMiB, value));
            CHECK(Program::has(two, 4 * kMiB, value + 1));
        }
        bench.free(one);
        bench.free(two);
        CHECK_EQUAL(bench.credits.bytes, 200 * kMiB);
    }
    check_order(card);
    check_nothing_left();
}

TEST(a_refused_prefetch_gives_no_credits) {
    const Card card(kOrdered);
    {
        Bench bench(card, kPrefetch, 200 * kMiB);
        bench.allocate(130 * kMiB);
        CHECK_EQUAL(bench.bring(), 0U);
        // The second step is refused: the first one counts.
        CHECK_EQUAL(gpu::sim().inject("cuMemPrefetchAsync_v2", 2, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        CHECK(!bench.move_out());
        CHECK_EQUAL(bench.memory->usage().swapped, 64 * kMiB);
        bench.check_credits(130 * kMiB);
        gpu::sim().clear_faults();
        CHECK(bench.move_out());
        CHECK_EQUAL(bench.memory->usage().swapped, 130 * kMiB);
    }
    check_nothing_left();
}
