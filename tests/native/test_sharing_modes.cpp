// The figures of docs/sharing-model.md, on the virtual clock.
#include <cmath>
#include <memory>
#include <string>

#include "gpu.h"
#include "lab/sharing_cases.h"
#include "testing.h"

namespace {

using namespace vramkit;
using lab::Mode;

constexpr std::uint64_t MiB = 1 << 20;
constexpr std::uint64_t GiB = 1024 * MiB;
constexpr std::uint64_t kProgram = 12 * GiB;
constexpr double kKernel = 12.884901888 / 332;  // seconds of one launch, by the study's memory

struct Machine {
    std::string profile = "memory-sharing";
    // Whether a prefetch to a full card evicts, as documented, or does nothing.
    bool prefetch_evicts = true;
};

std::string profile_of(const Machine& machine) {
    if (machine.prefetch_evicts) return machine.profile;
    static const gpu::Folder folder;
    const auto file = folder.path / "full.toml";
    std::ofstream(file) << "name = \"full\"\nextends = \"" << machine.profile
                        << "\"\n[managed]\nprefetch_evicts = 0\n";
    return file.string();
}

// Two programs on a simulated card of their own, which holds one of them, 2 MiB and `more`. The
// checker must have nothing to say.
class Card {
  public:
    Card(const Machine& machine, Mode mode, std::uint64_t program = kProgram,
         std::uint64_t more = 0) {
        const std::uint64_t capacity = lab::footprint(program) + 2 * MiB + more;
        gpu::reset("profile=" + profile_of(machine) +
                   ",clock=virtual,checker=on,data=off,capacity=" + std::to_string(capacity / MiB) +
                   "MiB");
        const CUcontext context = gpu::use_device();
        int multiprocessors = 0;
        CHECK_EQUAL(gpu::cu().cuDeviceGetAttribute(&multiprocessors,
                                                   CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
                    CUDA_SUCCESS);
        const lab::AddingCard card{gpu::driver(), context, 0, gpu::kernel("vk_add"),
                                   static_cast<unsigned>(multiprocessors) * 8};
        Failure why;
        programs = lab::TwoPrograms::open(card, mode, program, more, why);
        if (programs == nullptr) testing::note(false, __FILE__, __LINE__, why.message);
        REQUIRE(programs != nullptr);
    }
    ~Card() {
        programs.reset();
        CHECK_EQUAL(gpu::text_of(gpu::sim().reports), "[]");
    }

    double switch_seconds(int winner, bool empty = false) {
        lab::Switch measured;
        Failure why;
        CHECK(lab::one_switch(*programs, winner, empty, measured, why));
        return measured.seconds();
    }

    std::unique_ptr<lab::TwoPrograms> programs;
};

// As in the table: the second switch, when all has been on the host before.
double switch_seconds(const Machine& machine, Mode mode, std::uint64_t more = 0) {
    Card card(machine, mode, kProgram, more);
    card.switch_seconds(0);
    return card.switch_seconds(1);
}

double share(Mode mode, std::uint64_t program, double quantum, int window) {
    const Card card(Machine{}, mode, program);
    lab::Turns taken;
    Failure why;
    CHECK(lab::take_turns(*card.programs, 10, quantum, window, taken, why));
    const double kernel = static_cast<double>(3 * lab::array_bytes(program)) / 332e9;
    return 100 * static_cast<double>(taken.launches) * kernel / taken.seconds;
}

// To the last digit printed.
void check_seconds(double seen, double expected) {
    if (std::abs(seen - expected) > 0.00005) CHECK_EQUAL(seen, expected);
}
void check_percent(double seen, double expected) {
    if (std::abs(seen - expected) > 0.005) CHECK_EQUAL(seen, expected);
}

}  // namespace

TEST(paging_in_takes_fifteen_microseconds_for_each_of_three_million_pages) {
    check_seconds(3'145'728 * 15e-6, 47.1859);
    check_seconds(switch_seconds(Machine{}, Mode::paged), 47.1859);
    // Room for 4 GiB more saves nothing: what is used least recently is what is needed next.
    check_seconds(switch_seconds(Machine{}, Mode::paged, 4 * GiB), 47.1859);
}

TEST(a_prefetch_into_an_empty_card_takes_one_copy) {
    const double seconds = Card(Machine{}, Mode::prefetch).switch_seconds(0, true);
    check_seconds(seconds, 12.884901888 / 16);
    check_seconds(seconds, 0.8053);
}

TEST(a_prefetch_to_a_full_card_evicts_beside_or_does_nothing) {
    check_seconds(switch_seconds(Machine{}, Mode::prefetch), 0.8886);
    const Machine full{.prefetch_evicts = false};
    check_seconds(switch_seconds(full, Mode::prefetch), 47.1859);
    // 4 GiB find room, the other two thirds of the faults stay.
    check_seconds(switch_seconds(full, Mode::prefetch, 4 * GiB), 47.18592 * 2 / 3);
}

TEST(out_first_and_then_in_takes_two_copies_and_both_at_once_the_slower_of_them) {
    check_seconds(switch_seconds(Machine{}, Mode::prefetch_out_in), 1.6106);
    check_seconds(switch_seconds(Machine{}, Mode::prefetch_both), 0.8886);
    check_seconds(switch_seconds(Machine{}, Mode::swap_out_in), 1.6117);
    check_seconds(switch_seconds(Machine{}, Mode::swap), 0.8929);
}

TEST(only_swapping_makes_use_of_room_for_a_part) {
    check_seconds(switch_seconds(Machine{}, Mode::prefetch, 4 * GiB), 0.8886);
    check_seconds(switch_seconds(Machine{}, Mode::swap, 4 * GiB), 0.5966);
}

TEST(an_h200_pages_in_forty_times_as_fast) {
    const Machine h200{.profile = "h200"};
    check_seconds(switch_seconds(h200, Mode::paged), 1.1714);
    check_seconds(switch_seconds(h200, Mode::prefetch), 0.2572);
    check_seconds(switch_seconds(h200, Mode::prefetch_out_in), 0.5083);
    check_seconds(switch_seconds(h200, Mode::swap), 0.2588);
}

// A turn of 30 s by paging: 47.2 s of faults and what was launched meanwhile, whatever the quantum.
TEST(paging_leaves_what_one_window_computes) {
    check_percent(share(Mode::paged, kProgram, 30, 1), 100 * kKernel / (47.18592 + kKernel));
    check_percent(share(Mode::paged, kProgram, 30, 1), 0.08);
    check_percent(share(Mode::paged, kProgram, 30, 32), 2.56);
    check_percent(share(Mode::paged, kProgram, 30, 1024), 45.72);
    check_percent(share(Mode::paged, kProgram, 2, 32), 2.56);
    check_percent(share(Mode::paged, kProgram, 60, 32), 22.45);
    check_percent(share(Mode::paged, 4 * GiB, 30, 32), 47.95);
    check_percent(share(Mode::paged, 1 * GiB, 30, 32), 86.86);
}

TEST(moving_in_bulk_leaves_nearly_all_of_thirty_seconds) {
    check_percent(share(Mode::prefetch, kProgram, 30, 32), 97.10);
    check_percent(share(Mode::swap, kProgram, 30, 32), 97.09);
    check_percent(share(Mode::swap, kProgram, 30, 1), 97.01);
    check_percent(share(Mode::swap, kProgram, 2, 32), 58.17);
    check_percent(share(Mode::swap, 1 * GiB, 30, 32), 99.69);
}

TEST(two_programs_need_a_mode_that_exists_and_three_arrays) {
    CHECK(lab::mode_of("swap") == Mode::swap);
    CHECK(!lab::mode_of("swapping").has_value());
    gpu::reset("clock=virtual");
    const lab::AddingCard card{gpu::driver(), gpu::use_device(), 0, gpu::kernel("vk_add"), 1};
    Failure why;
    CHECK(lab::TwoPrograms::open(card, Mode::swap, 4096, 0, why) == nullptr);
    CHECK(why.message.find("4096") != std::string::npos);
}

// Every call on the way fails once: a failure, nothing left on the card, and no report.
TEST(a_driver_call_that_fails_ends_a_case_with_its_name) {
    for (const Mode mode : {Mode::prefetch_both, Mode::swap}) {
        for (const char* call : {"cuStreamSynchronize", "cuLaunchKernel"}) {
            Card card(Machine{}, mode, 64 * MiB);
            gpu::sim().inject(call, 2, 1, CUDA_ERROR_UNKNOWN, 0);
            lab::Switch measured;
            Failure why;
            CHECK(!lab::one_switch(*card.programs, 0, false, measured, why));
            CHECK_EQUAL(std::string(why.call), call);
            gpu::sim().clear_faults();
        }
    }
}
