// The figures of docs/sharing-model.md, on the virtual clock. The benchmark's gpu.h, not that of
// the tests, comes first here.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "sharing_modes.h"
#include "testing.h"

namespace {

using namespace bench;
using namespace bench::sharing;

constexpr std::uint64_t kProgram = 12 * GiB;
constexpr double kKernel = 12.884901888 / 332;  // seconds of one launch, by the study's memory

// A simulated card of its own for each question; the checker must have nothing to say.
class Card {
  public:
    explicit Card(const std::string& settings) : gpu(options(settings)) {}
    ~Card() {
        const auto reports =
            detail::control<std::size_t (*)(char*, std::size_t)>(gpu.driver(), "simReports");
        std::vector<char> text(reports(nullptr, 0) + 1);
        reports(text.data(), text.size());
        CHECK_EQUAL(std::string(text.data()), "[]");
    }
    Gpu gpu;

  private:
    static GpuOptions options(const std::string& settings) {
        GpuOptions options;
        options.simulated = true;
        options.library = VRAMKIT_SIM_PATH;
        options.settings = settings;
        options.kernels = VRAMKIT_KERNELS;
        return options;
    }
};

// As in the table: the second switch, when all has been on the host before.
double switch_seconds(const Machine& machine, Mode mode, std::uint64_t more = 0) {
    const Card card(settings(machine, kProgram, more));
    Pair pair(card.gpu, mode, kProgram, more);
    pair.switch_seconds(0);
    return pair.switch_seconds(1);
}

double share(Mode mode, std::uint64_t program, double quantum, int window) {
    const Card card(settings(Machine{}, program));
    Pair pair(card.gpu, mode, program);
    const double kernel = static_cast<double>(3 * array_bytes(program)) / 332e9;
    return 100 * take_turns(pair, 10, quantum, window, kernel).share();
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
    const Card card(settings(Machine{}, kProgram));
    Pair pair(card.gpu, Mode::prefetch, kProgram);
    for (const int each : {0, 1}) pair.send_home(each);
    const double begin = pair.seconds();
    pair.switch_to(0);
    check_seconds(pair.seconds() - begin, 12.884901888 / 16);
    check_seconds(pair.seconds() - begin, 0.8053);
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
