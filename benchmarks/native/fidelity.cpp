// Runs the fidelity scenarios on a real card or on the simulated GPU and writes what it measured.
#include <fnmatch.h>

#include <atomic>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "fidelity_table.h"
#include "machine.h"
#include "options.h"
#include "result_file.h"
#include "time_limit.h"

namespace {

using namespace bench;

struct Options {
    GpuOptions gpu;
    std::string only = "*";
    std::string json;
    int repetitions = 9;
    int time_limit_s = 120;
    bool list = false;
};

struct Result {
    const Scenario* scenario;
    std::vector<double> values;
    std::string error;
};

// Nothing where help was asked for and printed.
std::optional<Options> parse(int count, char** arguments) {
    Options options;
    GpuChoice choice;
    OptionTable table("fidelity --driver cuda|sim --kernels FILE",
                      "Measures the same scenarios on NVIDIA's driver or on the simulated GPU, "
                      "times in microseconds.");
    choice.add(table);
    table.number("repetitions", "measured, of each scenario", options.repetitions, 1, 1'000'000)
        .text("only", "GLOB", "scenarios whose name matches, for example 'copy_*'", options.only)
        .text("json", "FILE", "write the results there, renewed after every scenario", options.json)
        .number("time-limit", "seconds, then give up", options.time_limit_s, 1, 1'000'000)
        .flag("list", "print the scenarios and stop", options.list);
    if (!table.read(count, arguments)) return std::nullopt;
    if (!options.list) options.gpu = choice.checked();
    return options;
}

std::string report(const Gpu& gpu, const Options& options, const std::vector<Result>& results,
                   bool complete) {
    Json json;
    json.begin_object().field("benchmark", "fidelity").field("complete", complete);
    json.field("simulated", gpu.simulated()).field("device", gpu.name());
    json.field("driver_version", gpu.version()).key("settings").raw(gpu.settings());
    write_machine(json);
    json.field("repetitions", options.repetitions).key("scenarios").begin_array();
    for (const Result& result : results) {
        json.begin_object().field("scenario", result.scenario->name);
        json.field("family", result.scenario->family);
        json.field("quantity", result.scenario->quantity).field("unit", "us");
        json.field("bytes", static_cast<double>(result.scenario->bytes));
        if (!result.error.empty()) {
            json.field("error", result.error);
        } else {
            json.field("repetitions", static_cast<int>(result.values.size()));
            json.field("median", quantile(result.values, 0.5));
            json.field("p10", quantile(result.values, 0.1));
            json.field("p90", quantile(result.values, 0.9)).field("values", result.values);
        }
        json.end_object();
    }
    return json.end_array().end_object().text();
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
    std::atomic<const char*> running = "the opening of the driver";
    const TimeLimit limit(options.time_limit_s, [&running] {
        std::fprintf(stderr, "fidelity: the time is over, in %s; results so far are written\n",
                     running.load());
    });
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

int list_all() {
    for (const Scenario& scenario : kScenarios) {
        std::printf("%-28s %s: %s\n", scenario.name, scenario.family, scenario.quantity);
    }
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    return run_program(
        "fidelity", [&] { return parse(count, arguments); },
        [](const Options& options) { return options.list ? list_all() : run_all(options); });
}
