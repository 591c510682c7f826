// The experiment of docs/sharing-model.md on the simulated GPU: what a switch between two programs
// costs by mode, and what share of their turns they compute by quantum, amount and window.
#include <cstdio>
#include <string>
#include <vector>

#include "machine.h"
#include "options.h"
#include "result_file.h"
#include "sharing_modes.h"
#include "time_limit.h"

namespace {

using namespace bench;
using namespace bench::sharing;

constexpr int kTurns = 10;

struct Options {
    GpuOptions gpu;
    std::string json;
    int time_limit_s = 600;
};

std::optional<Options> parse(int count, char** arguments) {
    Options options;
    GpuChoice choice;
    OptionTable table("sharing_modes --sim-library FILE --kernels FILE",
                      "Two programs on one simulated card that holds one of them, on the virtual "
                      "clock.");
    choice.add_library(table);
    choice.add_kernels(table);
    table.text("json", "FILE", "write the results there", options.json)
        .number("time-limit", "seconds, then give up", options.time_limit_s, 1, 86400);
    if (!table.read(count, arguments)) return std::nullopt;
    options.gpu = choice.checked(true);
    return options;
}

// The profiles' rates of the kernel that adds.
double kernel_seconds(const std::string& profile, std::uint64_t program) {
    const double rate = profile == "h200" ? 3.51e12 : 332e9;
    return static_cast<double>(3 * array_bytes(program)) / rate;
}

class Run {
  public:
    explicit Run(const Options& options) : options_(options) {
        json_.begin_object().field("benchmark", "sharing_modes").field("simulated", true);
        write_machine(json_);
    }

    void switches() {
        json_.key("switches").begin_array();
        for (const char* profile : {"memory-sharing", "h200"}) {
            for (const std::uint64_t more : {std::uint64_t{0}, std::uint64_t{4 * GiB}}) {
                for (const bool evicts : {true, false}) {
                    for (const Mode mode : kModes) {
                        if (!evicts && mode != Mode::prefetch) continue;
                        one_switch(Machine{profile, evicts}, more, mode);
                    }
                }
            }
        }
        json_.end_array();
    }

    void progress() {
        json_.key("progress").begin_array();
        for (const char* profile : {"memory-sharing", "h200"}) {
            for (const Mode mode : {Mode::paged, Mode::prefetch, Mode::swap}) {
                for (const int gib : {1, 4, 12}) {
                    for (const double quantum : {2.0, 5.0, 30.0, 60.0}) {
                        for (const int window : {1, 32, 1024}) {
                            turns(Machine{profile, true}, mode, gib, quantum, window);
                        }
                    }
                }
            }
        }
        json_.end_array();
    }

    std::string text() { return json_.end_object().text(); }

  private:
    Gpu open(const std::string& settings) const {
        GpuOptions opened = options_.gpu;
        opened.settings = settings;
        return Gpu(opened);
    }

    void one_switch(const Machine& machine, std::uint64_t more, Mode mode) {
        constexpr std::uint64_t program = 12 * GiB;
        const Gpu gpu = open(settings(machine, program, more));
        Pair pair(gpu, mode, program, more);
        pair.switch_seconds(0);  // the first one may find pages that were never on the host
        const double seconds = pair.switch_seconds(1);
        std::printf("%-15s card + %2llu GiB, %s%-24s %9.4f s\n", machine.profile.c_str(),
                    static_cast<unsigned long long>(more / GiB),
                    machine.prefetch_evicts ? "" : "no eviction, ", name(mode), seconds);
        json_.begin_object().field("profile", machine.profile).field("mode", name(mode));
        json_.field("prefetch_evicts", machine.prefetch_evicts);
        json_.field("program_bytes", program).field("room_bytes", program + more);
        json_.field("seconds", seconds).end_object();
    }

    void turns(const Machine& machine, Mode mode, int gib, double quantum, int window) {
        const std::uint64_t program = static_cast<std::uint64_t>(gib) * GiB;
        const Gpu gpu = open(settings(machine, program));
        Pair pair(gpu, mode, program);
        const Progress progress =
            take_turns(pair, kTurns, quantum, window, kernel_seconds(machine.profile, program));
        std::printf("%-15s %-24s %2d GiB, quantum %2.0f s, window %4d: %6.2f %% of %.1f s\n",
                    machine.profile.c_str(), name(mode), gib, quantum, window,
                    100 * progress.share(), progress.seconds);
        json_.begin_object().field("profile", machine.profile).field("mode", name(mode));
        json_.field("program_bytes", program).field("quantum_s", quantum).field("window", window);
        json_.field("turns", kTurns).field("launches", progress.launches);
        json_.field("seconds", progress.seconds).field("share", progress.share()).end_object();
    }

    const Options& options_;
    Json json_;
};

void run(const Options& options) {
    const TimeLimit limit(options.time_limit_s,
                          [] { std::fputs("sharing_modes: the time is over\n", stderr); });
    Run run(options);
    run.switches();
    run.progress();
    if (!options.json.empty()) write_file(options.json, run.text());
}

}  // namespace

int main(int count, char** arguments) {
    return run_program(
        "sharing_modes", [&] { return parse(count, arguments); },
        [](const Options& options) {
            run(options);
            return 0;
        });
}
