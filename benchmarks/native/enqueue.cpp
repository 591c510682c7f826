// What one enqueue costs on the simulated GPU in virtual time, in real nanoseconds, and whether its
// memory stays bounded over a long run. Bytes are not moved (data=off).
#include <getopt.h>
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "enqueue_work.h"
#include "json.h"
#include "machine.h"
#include "samples.h"

namespace {

using namespace bench;

constexpr const char* kHelp =
    R"(usage: enqueue --sim-library FILE --kernels FILE [options]

Real nanoseconds of one enqueue on the simulated GPU, virtual clock, no data.

  --sim-library FILE     libcuda.so.1 of the simulated GPU
  --kernels FILE         PTX text of the built-in kernels (src/vramkit/driver/kernels.ptx)
  --profile NAME         profile of the simulated GPU (h200)
  --operations N         enqueues in one repetition (1000000)
  --mixed N              enqueues in the run that watches memory (10000000), 10 samples
  --repetitions N        repetitions of each case (5)
  --json FILE            write the results there
  --time-limit SECONDS   give up after that long (1800)
  --help                 print this and stop
)";

constexpr int kSynchroniseEvery = 1000;

struct Options {
    GpuOptions gpu;
    std::string profile = "h200";
    std::string json;
    int operations = 1'000'000;
    int mixed = 10'000'000;
    int repetitions = 5;
    int time_limit_s = 1800;
    bool help = false;
};

struct Case {
    const Operation* operation;
    int streams;
    bool synchronised;
    bool checker;
    std::vector<double> call_ns;   // of one enqueue, with its share of the synchronisation if any
    std::vector<double> drain_ns;  // one enqueue's share of the final synchronisation, beside that
    double growth_bytes;           // of resident memory over the whole case
};

struct Mixed {
    bool synchronised;
    bool checker;
    std::vector<double> resident;  // bytes, after every tenth of the run
    double seconds;
};

Options parse(int count, char** arguments) {
    Options options;
    options.gpu.simulated = true;
    constexpr int most = 1'000'000'000;
    const option known[] = {{"sim-library", required_argument, nullptr, 'l'},
                            {"kernels", required_argument, nullptr, 'k'},
                            {"profile", required_argument, nullptr, 'p'},
                            {"operations", required_argument, nullptr, 'o'},
                            {"mixed", required_argument, nullptr, 'm'},
                            {"repetitions", required_argument, nullptr, 'r'},
                            {"json", required_argument, nullptr, 'j'},
                            {"time-limit", required_argument, nullptr, 't'},
                            {"help", no_argument, nullptr, 'h'},
                            {nullptr, 0, nullptr, 0}};
    for (int letter = 0; (letter = getopt_long(count, arguments, "", known, nullptr)) != -1;) {
        switch (letter) {
            case 'l':
                options.gpu.library = optarg;
                break;
            case 'k':
                options.gpu.kernels = optarg;
                break;
            case 'p':
                options.profile = optarg;
                break;
            case 'o':
                options.operations = whole_number("operations", optarg, 1000, most);
                break;
            case 'm':
                options.mixed = whole_number("mixed", optarg, 10'000, most);
                break;
            case 'r':
                options.repetitions = whole_number("repetitions", optarg, 1, 1000);
                break;
            case 'j':
                options.json = optarg;
                break;
            case 't':
                options.time_limit_s = whole_number("time-limit", optarg, 1, 86400);
                break;
            case 'h':
                options.help = true;
                break;
            default:
                throw Failure("see enqueue --help for the options");
        }
    }
    if (optind < count)
        throw Failure(std::string("what is '") + arguments[optind] + "'? See --help");
    if (!options.help && (options.gpu.library.empty() || options.gpu.kernels.empty())) {
        throw Failure("--sim-library FILE and --kernels FILE are needed, see --help");
    }
    return options;
}

void give_up(int) {
    constexpr char text[] = "enqueue: the time limit is over\n";
    _exit(write(STDERR_FILENO, text, sizeof text - 1) < 0 ? 4 : 3);
}

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double resident_bytes() {
    std::ifstream file("/proc/self/statm");
    double total = 0;
    double resident = 0;
    file >> total >> resident;
    return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Freed memory goes back to the system first, so that an earlier case cannot hide growth.
double resident_bytes_at_start() {
    malloc_trim(0);
    return resident_bytes();
}

void measure(Case& result, const Options& options, Gpu& gpu) {
    Workbench bench(gpu, result.streams);
    const double before = resident_bytes_at_start();
    for (int repetition = -1; repetition < options.repetitions; ++repetition) {
        const double start = seconds_now();
        for (int i = 0; i < options.operations; ++i) {
            if (i % kSynchroniseEvery == 0) bench.next_block(result.synchronised);
            result.operation->enqueue(bench, static_cast<std::size_t>(i % result.streams));
        }
        const double enqueued = seconds_now();
        bench.synchronize();
        const double drained = seconds_now();
        if (repetition < 0) continue;  // warms up caches and lets memory grow to its working size
        result.call_ns.push_back((enqueued - start) / options.operations * 1e9);
        result.drain_ns.push_back((drained - enqueued) / options.operations * 1e9);
    }
    result.growth_bytes = resident_bytes() - before;
}

Mixed measure_mixed(bool synchronised, bool checker, const Options& options, Gpu& gpu) {
    Mixed result{synchronised, checker, {}, 0};
    resident_bytes_at_start();
    Workbench bench(gpu, 8);
    const int tenth = options.mixed / 10;
    const double start = seconds_now();
    for (int i = 0; i < tenth * 10; ++i) {
        if (i % kSynchroniseEvery == 0) bench.next_block(synchronised);
        // The streams shift against the kinds, so that every stream gets every kind.
        const auto at = static_cast<std::size_t>(i);
        const std::size_t lane = (at + at / kOperations.size()) % 8;
        kOperations[at % kOperations.size()].enqueue(bench, lane);
        if ((i + 1) % tenth == 0) result.resident.push_back(resident_bytes());
    }
    bench.synchronize();
    result.seconds = seconds_now() - start;
    return result;
}

void require_no_reports(const Gpu& gpu) {
    const auto reports =
        detail::control<std::size_t (*)(char*, std::size_t)>(gpu.driver(), "simReports");
    std::vector<char> text(reports(nullptr, 0) + 1);
    reports(text.data(), text.size());
    if (std::strcmp(text.data(), "[]") != 0) {
        throw Failure(std::string("the checker reports a fault of this benchmark: ") + text.data());
    }
}

std::string report(const Options& options, const std::string& settings,
                   const std::vector<Case>& cases, const std::vector<Mixed>& mixed) {
    Json json;
    json.open('{').member("benchmark", "enqueue").member("simulated", true);
    json.member("profile", options.profile).key("settings").raw(settings);
    write_machine(json);
    json.member("operations", options.operations).member("repetitions", options.repetitions);
    json.member("synchronise_every", kSynchroniseEvery).key("cases").open('[');
    for (const Case& each : cases) {
        json.open('{').member("operation", each.operation->name);
        json.member("call", each.operation->call).member("streams", each.streams);
        json.member("synchronised", each.synchronised).member("checker", each.checker);
        json.member("unit", "ns").member("median", quantile(each.call_ns, 0.5));
        json.member("p10", quantile(each.call_ns, 0.1)).member("p90", quantile(each.call_ns, 0.9));
        json.member("values", each.call_ns).member("drain_median", quantile(each.drain_ns, 0.5));
        json.member("resident_growth_bytes", each.growth_bytes).close('}');
    }
    json.close(']').key("mixed").open('[');
    for (const Mixed& each : mixed) {
        json.open('{').member("operations", options.mixed / 10 * 10);
        json.member("synchronised", each.synchronised).member("checker", each.checker);
        json.member("seconds", each.seconds);
        json.member("resident_bytes", each.resident);
        json.member("growth_bytes", quantile(each.resident, 1) - each.resident.front()).close('}');
    }
    return json.close(']').close('}').text();
}

void run(const Options& options) {
    std::signal(SIGALRM, give_up);
    alarm(static_cast<unsigned>(options.time_limit_s));
    std::vector<Case> cases;
    std::vector<Mixed> mixed;
    std::string settings;
    for (const bool checker : {false, true}) {
        GpuOptions opened = options.gpu;
        opened.settings = "profile=" + options.profile +
                          ",clock=virtual,data=off,checker=" + (checker ? "on" : "off");
        for (const bool synchronised : {true, false}) {
            Gpu gpu(opened);
            mixed.push_back(measure_mixed(synchronised, checker, options, gpu));
            require_no_reports(gpu);
            settings = gpu.settings();
            std::printf("%d mixed, %s, checker %s: %.0f ns a call\n", options.mixed,
                        synchronised ? "synchronised" : "never synchronised",
                        checker ? "on" : "off", mixed.back().seconds / options.mixed * 1e9);
        }
        for (const Operation& operation : kOperations) {
            for (const int streams : {1, 8}) {
                for (const bool synchronised : {true, false}) {
                    Gpu gpu(opened);
                    Case result{&operation, streams, synchronised, checker, {}, {}, 0};
                    measure(result, options, gpu);
                    require_no_reports(gpu);
                    std::printf("%-22s %d stream%s, %s, checker %s: %.0f ns (drain %.0f)\n",
                                operation.name, streams, streams == 1 ? "" : "s",
                                synchronised ? "synchronised" : "never synchronised",
                                checker ? "on" : "off", quantile(result.call_ns, 0.5),
                                quantile(result.drain_ns, 0.5));
                    std::fflush(stdout);
                    cases.push_back(std::move(result));
                }
            }
        }
    }
    if (!options.json.empty()) {
        write_file(options.json, report(options, settings, cases, mixed));
    }
}

}  // namespace

int main(int count, char** arguments) {
    try {
        const Options options = parse(count, arguments);
        if (options.help) {
            std::fputs(kHelp, stdout);
        } else {
            run(options);
        }
        return 0;
    } catch (const Failure& failure) {
        std::fprintf(stderr, "enqueue: %s\n", failure.what());
        return 2;
    }
}
