// Runs the fidelity scenarios on a real card or on the simulated GPU and writes what it measured.
#include <fnmatch.h>
#include <getopt.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "fidelity_table.h"
#include "json.h"
#include "machine.h"

namespace {

using namespace bench;

constexpr const char* kHelp =
    R"(usage: fidelity --driver cuda|sim --kernels FILE [options]

Measures the same scenarios on NVIDIA's driver or on the simulated GPU, times in microseconds.

  --driver cuda|sim      which driver answers
  --kernels FILE         PTX text of the built-in kernels (src/vramkit/driver/kernels.ptx)
  --sim-library FILE     libcuda.so.1 of the simulated GPU; needed with --driver sim
  --settings TEXT        its settings (profile=h200,clock=virtual,checker=off,data=off)
  --device N             ordinal of the card (0)
  --repetitions N        measured repetitions of each scenario (9)
  --only GLOB            scenarios whose name matches, for example 'copy_*'
  --json FILE            write the results there, renewed after every scenario
  --time-limit SECONDS   give up after that long (120)
  --list                 print the scenarios and stop
  --help                 print this and stop
)";

struct Options {
    GpuOptions gpu;
    std::string driver;
    std::string only = "*";
    std::string json;
    int repetitions = 9;
    int time_limit_s = 120;
    bool list = false;
    bool help = false;
};

struct Result {
    const Scenario* scenario;
    std::vector<double> values;
    std::string error;
};

Options parse(int count, char** arguments) {
    Options options;
    options.gpu.settings = "profile=h200,clock=virtual,checker=off,data=off";
    const option known[] = {{"driver", required_argument, nullptr, 'd'},
                            {"kernels", required_argument, nullptr, 'k'},
                            {"sim-library", required_argument, nullptr, 'l'},
                            {"settings", required_argument, nullptr, 's'},
                            {"device", required_argument, nullptr, 'n'},
                            {"repetitions", required_argument, nullptr, 'r'},
                            {"only", required_argument, nullptr, 'o'},
                            {"json", required_argument, nullptr, 'j'},
                            {"time-limit", required_argument, nullptr, 't'},
                            {"list", no_argument, nullptr, 'L'},
                            {"help", no_argument, nullptr, 'h'},
                            {nullptr, 0, nullptr, 0}};
    for (int letter = 0; (letter = getopt_long(count, arguments, "", known, nullptr)) != -1;) {
        switch (letter) {
            case 'd':
                options.driver = optarg;
                break;
            case 'k':
                options.gpu.kernels = optarg;
                break;
            case 'l':
                options.gpu.library = optarg;
                break;
            case 's':
                options.gpu.settings = optarg;
                break;
            case 'n':
                options.gpu.device = whole_number("device", optarg, 0, 1'000'000);
                break;
            case 'r':
                options.repetitions = whole_number("repetitions", optarg, 1, 1'000'000);
                break;
            case 'o':
                options.only = optarg;
                break;
            case 'j':
                options.json = optarg;
                break;
            case 't':
                options.time_limit_s = whole_number("time-limit", optarg, 1, 1'000'000);
                break;
            case 'L':
                options.list = true;
                break;
            case 'h':
                options.help = true;
                break;
            default:
                throw Failure("see fidelity --help for the options");
        }
    }
    if (optind < count)
        throw Failure(std::string("what is '") + arguments[optind] + "'? See --help");
    if (options.list || options.help) return options;
    if (options.driver != "cuda" && options.driver != "sim") {
        throw Failure("--driver takes cuda or sim, not '" + options.driver + "'");
    }
    options.gpu.simulated = options.driver == "sim";
    if (options.gpu.kernels.empty()) throw Failure("--kernels FILE is needed, see --help");
    if (options.gpu.simulated && options.gpu.library.empty()) {
        throw Failure("--driver sim needs --sim-library FILE, see --help");
    }
    return options;
}

// For the time limit's handler, which may only touch what it can read at any moment.
const char* volatile running = "the opening of the driver";

void give_up(int) {
    const auto say = [](const char* text) {
        if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(4);
    };
    say("fidelity: the time limit is over, in ");
    say(running);
    say("; results so far are in the file of --json\n");
    _exit(3);
}

std::string report(const Gpu& gpu, const Options& options, const std::vector<Result>& results,
                   bool complete) {
    Json json;
    json.open('{').member("benchmark", "fidelity").member("complete", complete);
    json.member("simulated", gpu.simulated()).member("device", gpu.name());
    json.member("driver_version", gpu.version()).key("settings").raw(gpu.settings());
    write_machine(json);
    json.member("repetitions", options.repetitions).key("scenarios").open('[');
    for (const Result& result : results) {
        json.open('{').member("scenario", result.scenario->name);
        json.member("family", result.scenario->family);
        json.member("quantity", result.scenario->quantity).member("unit", "us");
        json.member("bytes", static_cast<double>(result.scenario->bytes));
        if (!result.error.empty()) {
            json.member("error", result.error);
        } else {
            json.member("repetitions", static_cast<int>(result.values.size()));
            json.member("median", quantile(result.values, 0.5));
            json.member("p10", quantile(result.values, 0.1));
            json.member("p90", quantile(result.values, 0.9)).member("values", result.values);
        }
        json.close('}');
    }
    return json.close(']').close('}').text();
}

// Brings a real card out of its idle clocks; costs the simulated one nothing that is measured.
void wake(Gpu& gpu) {
    Stream stream(gpu);
    gpu.spin(200'000'000, gpu.multiprocessors(), 256, stream);
    stream.synchronize();
}

Result run(Gpu& gpu, const Scenario& scenario, int repetitions) {
    Result result{&scenario, {}, ""};
    try {
        Samples samples(repetitions);
        scenario.measure(gpu, samples);
        result.values = samples.values();
        std::printf("%-28s %12.3f us  (%.3f to %.3f)  %s\n", scenario.name,
                    quantile(result.values, 0.5), quantile(result.values, 0.1),
                    quantile(result.values, 0.9), scenario.quantity);
    } catch (const Failure& failure) {
        result.error = failure.what();
        std::fprintf(stderr, "%s: %s\n", scenario.name, failure.what());
    }
    std::fflush(stdout);
    return result;
}

int run_all(const Options& options) {
    std::vector<const Scenario*> chosen;
    for (const Scenario& scenario : kScenarios) {
        if (fnmatch(options.only.c_str(), scenario.name, 0) == 0) chosen.push_back(&scenario);
    }
    if (chosen.empty()) throw Failure("no scenario matches '" + options.only + "', see --list");
    std::signal(SIGALRM, give_up);
    alarm(static_cast<unsigned>(options.time_limit_s));

    Gpu gpu(options.gpu);
    std::printf("%s, CUDA %d.%d, %s, %zu scenarios\n", gpu.name().c_str(), gpu.version() / 1000,
                gpu.version() % 1000 / 10, gpu.driver().path().c_str(), chosen.size());
    running = "waking the card";
    wake(gpu);
    std::vector<Result> results;
    bool sound = true;
    const auto save = [&](bool complete) {
        if (options.json.empty()) return;
        write_file(options.json, report(gpu, options, results, complete));
    };
    save(false);  // so that no older file is taken for this run's
    for (const Scenario* scenario : chosen) {
        running = scenario->name;
        results.push_back(run(gpu, *scenario, options.repetitions));
        sound = sound && results.back().error.empty();
        save(scenario == chosen.back());
    }
    return sound && gpu.clean() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        const Options options = parse(count, arguments);
        if (options.help) {
            std::fputs(kHelp, stdout);
        } else if (options.list) {
            for (const Scenario& scenario : kScenarios) {
                std::printf("%-28s %s: %s\n", scenario.name, scenario.family, scenario.quantity);
            }
        } else {
            return run_all(options);
        }
        return 0;
    } catch (const Failure& failure) {
        std::fprintf(stderr, "fidelity: %s\n", failure.what());
        return 2;
    }
}
