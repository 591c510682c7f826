// What one enqueue costs on the simulated GPU in virtual time, in real nanoseconds, and whether its
// memory stays bounded over a long run. Bytes are not moved (data=off).
#include <malloc.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "enqueue_work.h"
#include "machine.h"
#include "options.h"
#include "result_file.h"
#include "samples.h"
#include "time_limit.h"

namespace {

using namespace bench;

constexpr int kSynchroniseEvery = 1000;

struct Options {
    GpuOptions gpu;
    std::string profile = "h200";
    std::string json;
    int operations = 1'000'000;
    int mixed = 10'000'000;
    int repetitions = 5;
    int time_limit_s = 1800;
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

// Nothing where help was asked for and printed.
std::optional<Options> parse(int count, char** arguments) {
    constexpr int most = 1'000'000'000;
    Options options;
    GpuChoice choice;
    OptionTable table("enqueue --sim-library FILE --kernels FILE",
                      "Real nanoseconds of one enqueue on the simulated GPU, virtual clock, no "
                      "data.");
    choice.add_library(table);
    choice.add_kernels(table);
    table.text("profile", "NAME", "of the simulated GPU", options.profile)
        .number("operations", "enqueues in one repetition", options.operations, 1000, most)
        .number("mixed", "enqueues in the run that watches memory, 10 samples", options.mixed,
                10'000, most)
        .number("repetitions", "of each case", options.repetitions, 1, 1000)
        .text("json", "FILE", "write the results there", options.json)
        .number("time-limit", "seconds, then give up", options.time_limit_s, 1, 86400);
    if (!table.read(count, arguments)) return std::nullopt;
    options.gpu = choice.checked(true);
    return options;
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
    json.begin_object().field("benchmark", "enqueue").field("simulated", true);
    json.field("profile", options.profile).key("settings").raw(settings);
    write_machine(json);
    json.field("operations", options.operations).field("repetitions", options.repetitions);
    json.field("synchronise_every", kSynchroniseEvery).key("cases").begin_array();
    for (const Case& each : cases) {
        json.begin_object().field("operation", each.operation->name);
        json.field("call", each.operation->call).field("streams", each.streams);
        json.field("synchronised", each.synchronised).field("checker", each.checker);
        json.field("unit", "ns").field("median", quantile(each.call_ns, 0.5));
        json.field("p10", quantile(each.call_ns, 0.1)).field("p90", quantile(each.call_ns, 0.9));
        json.field("values", each.call_ns).field("drain_median", quantile(each.drain_ns, 0.5));
        json.field("resident_growth_bytes", each.growth_bytes).end_object();
    }
    json.end_array().key("mixed").begin_array();
    for (const Mixed& each : mixed) {
        json.begin_object().field("operations", options.mixed / 10 * 10);
        json.field("synchronised", each.synchronised).field("checker", each.checker);
        json.field("seconds", each.seconds);
        json.field("resident_bytes", each.resident);
        json.field("growth_bytes", quantile(each.resident, 1) - each.resident.front()).end_object();
    }
    return json.end_array().end_object().text();
}

void run(const Options& options) {
    const TimeLimit limit(options.time_limit_s,
                          [] { std::fputs("enqueue: the time is over\n", stderr); });
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
    return run_program(
        "enqueue", [&] { return parse(count, arguments); },
        [](const Options& options) {
            run(options);
            return 0;
        });
}
