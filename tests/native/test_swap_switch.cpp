// Two programs of 12 GiB on one card that does not hold both, on the virtual clock: what a switch
// from one to the other takes. docs/swapping.md has these times.
#include <cmath>
#include <fstream>
#include <string>

#include "swap_bench.h"

using namespace swap_bench;

namespace {

constexpr std::uint64_t kProgram = 12 * kGiB;
constexpr std::uint64_t kChunk = 64 * kMiB;

// `duplex`: bytes a second each way while both are busy; one way alone has 16e9.
std::string profile(const char* duplex) {
    static const gpu::Folder folder;
    const std::string path = (folder.path / (std::string("link-") + duplex + ".toml")).string();
    std::ofstream(path) << "name = \"link\"\nextends = \"memory-sharing\"\n[link]\n"
                        << "duplex_bytes_per_s = " << duplex << "\n";
    return path;
}

std::string settings_of(const std::string& card, std::uint64_t card_bytes) {
    return "profile=" + card +
           ",checker=on,data=off,capacity=" + std::to_string(card_bytes / kMiB) + "MiB";
}

// The second program comes in with each chunk that the first one frees.
class Handover final : public swap::Credits {
  public:
    Handover(Free& credits, Engine& incoming) : credits_(credits), incoming_(incoming) {}
    bool take(std::uint64_t bytes) override { return credits_.take(bytes); }
    void give(std::uint64_t bytes) override {
        credits_.give(bytes);
        std::uint64_t missing = 0;
        Failure why;
        CHECK(incoming_.swap_in(credits_, missing, why));
    }

  private:
    Free& credits_;
    Engine& incoming_;
};

// One program on the card and one swapped out, as after a switch. The hasher's results take a
// little of the card.
class Pair {
  public:
    // `room`: bytes of the card for programs.
    Pair(const std::string& on, std::uint64_t room, bool hashes)
        : card(settings_of(on, room + 2 * kMiB)), credits(room) {
        Settings settings;
        settings.address_bytes = 16 * kGiB;
        if (hashes) settings.hash = gpu::kernel("vk_hash128");
        for (auto* engine : {&first, &second}) {
            Failure why;
            std::uint64_t missing = 0;
            *engine = open_engine(card, settings);
            CHECK((*engine)->prepare_host(kProgram, why));
            CHECK((*engine)->allocate(kProgram, why) != 0);
            CHECK((*engine)->make_resident(0, kEverything, credits, missing, why));
            // The second one needs the room, and the first one has a copy of all it has.
            CHECK((*engine)->swap_out(kEverything, credits, why));
        }
        Failure why;
        std::uint64_t missing = 0;
        CHECK(first->swap_in(credits, missing, why));
        CHECK_EQUAL(missing, 0U);
        CHECK(first->finish(why));
        gpu::sim().reset_call_counts();
    }
    ~Pair() {
        first.reset();
        second.reset();
        check_order(card);
        check_nothing_left();
    }

    // Seconds until the second program can run. `overlapped`: it comes in while the first goes.
    double switch_over(bool overlapped) {
        const double begin = gpu::sim().now();
        std::uint64_t missing = 0;
        Failure why;
        // What is free already is used before anything has to go.
        CHECK(second->swap_in(credits, missing, why));
        if (missing > 0) {
            Handover handover(credits, *second);
            swap::Credits& to = overlapped ? static_cast<swap::Credits&>(handover) : credits;
            CHECK(first->swap_out(missing, to, why));
        }
        CHECK(second->swap_in(credits, missing, why));
        CHECK_EQUAL(missing, 0U);
        CHECK(second->finish(why));
        CHECK_EQUAL(second->usage().resident, kProgram);
        return (gpu::sim().now() - begin) / bench::kSecond;
    }

    const Card card;
    Free credits;
    std::unique_ptr<Engine> first, second;
};

// A switch from the second program back to the first, after one that was not overlapped: no pair
// locks its two engines in both orders.
double switch_back(const std::string& card, std::uint64_t room) {
    Pair pair(card, room, false);
    pair.switch_over(false);
    std::swap(pair.first, pair.second);
    const std::uint64_t in = pair.second->counters().copied_in_bytes;
    const double seconds = pair.switch_over(true);
    CHECK_EQUAL(pair.second->counters().copied_in_bytes - in, 2 * kProgram - room);
    return seconds;
}

void check_seconds(double measured, double expected) {
    if (std::abs(measured - expected) > 0.00005) CHECK_EQUAL(measured, expected);
}

// Of the bytes alone.
double copy_seconds(std::uint64_t bytes, double rate) { return static_cast<double>(bytes) / rate; }

}  // namespace

TEST(out_and_then_in_takes_both_copies) {
    Pair pair(profile("16e9"), kProgram, false);
    const double seconds = pair.switch_over(false);
    CHECK(seconds > 2 * copy_seconds(kProgram, 16e9));
    check_seconds(seconds, 1.6117);
}

TEST(overlapped_it_takes_one_copy_and_a_chunk) {
    Pair pair(profile("16e9"), kProgram, false);
    const double seconds = pair.switch_over(true);
    const double bound = copy_seconds(kProgram, 16e9);
    CHECK(seconds > bound + copy_seconds(kChunk, 16e9));
    CHECK(seconds < bound + 2 * copy_seconds(kChunk, 16e9));
    check_seconds(seconds, 0.8101);
    CHECK_EQUAL(pair.card.calls("cuCtxSynchronize"), 0U);
    CHECK_EQUAL(pair.first->counters().copied_out_bytes, 2 * kProgram);
}

// 16 GB/s one way alone, 14.5 while both ways are busy.
TEST(a_link_that_is_slower_both_ways_sets_the_time) {
    const char* const card = "memory-sharing";
    check_seconds(Pair(card, kProgram, false).switch_over(false), 1.6117);
    const double seconds = Pair(card, kProgram, false).switch_over(true);
    CHECK(seconds > copy_seconds(kProgram, 14.5e9));
    check_seconds(seconds, 0.8929);
    check_seconds(Pair(card, kProgram, true).switch_over(true), 0.8093);
    check_seconds(Pair(card, 20 * kGiB, false).switch_over(true), 0.8337);
    check_seconds(switch_back(card, 20 * kGiB), 0.3002);
}

TEST(only_the_shortfall_goes_out) {
    Pair pair(profile("16e9"), 20 * kGiB, false);
    const std::uint64_t before = pair.first->counters().copied_out_bytes;
    const double seconds = pair.switch_over(true);
    CHECK_EQUAL(pair.first->counters().copied_out_bytes - before, 4 * kGiB);
    CHECK_EQUAL(pair.first->usage().resident, 8 * kGiB);
    check_seconds(seconds, 0.8059);
    check_seconds(switch_back(profile("16e9"), 20 * kGiB), 0.2729);
}

// With data off, hashes are always equal: nothing has changed.
TEST(what_did_not_change_is_hashed_and_not_copied) {
    Pair pair(profile("16e9"), kProgram, true);
    const std::uint64_t before = pair.first->counters().copied_out_bytes;
    const double seconds = pair.switch_over(true);
    CHECK_EQUAL(pair.first->counters().copied_out_bytes, before);
    CHECK_EQUAL(pair.first->counters().dropped_bytes, kProgram);
    check_seconds(seconds, 0.8093);
}

// A prediction: the driver calls and the link of an H200, with 50.1 GB/s each way while both are
// busy.
TEST(switches_on_an_h200) {
    check_seconds(Pair("h200", kProgram, false).switch_over(false), 0.4667);
    check_seconds(Pair("h200", kProgram, false).switch_over(true), 0.2588);
    check_seconds(Pair("h200", kProgram, true).switch_over(true), 0.2339);
    check_seconds(Pair("h200", 20 * kGiB, false).switch_over(true), 0.2414);
    check_seconds(switch_back("h200", 20 * kGiB), 0.0871);
}
