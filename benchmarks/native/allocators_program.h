// The part of a program that measures allocators which does not depend on the allocator: options,
// the run through the cases, the result file.
#pragma once

#include <fnmatch.h>
#include <getopt.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "allocators_bench.h"
#include "json.h"
#include "machine.h"

namespace bench {

struct AllocatorOptions {
    GpuOptions gpu;
    std::string driver;
    std::string only = "*";
    std::string json;
    int repetitions = 5;
    int milliseconds = 150;
    int cap_gib = 106;
    int settle_ms = 0;
    int time_limit_s = 120;
    bool list = false;
    bool help = false;
};

using AddCases = void (*)(Cases&, Bench&, const AllocatorOptions&);

inline constexpr const char* kAllocatorHelp =
    R"( --driver cuda|sim --kernels FILE [options]

Runs allocator workloads, each a number of times, and writes every single figure.

  --driver cuda|sim      which driver answers
  --kernels FILE         PTX text of the built-in kernels (src/vramkit/driver/kernels.ptx)
  --sim-library FILE     libcuda.so.1 of the simulated GPU; needed with --driver sim
  --settings TEXT        its settings (profile=h200,clock=virtual,checker=off,data=off)
  --repetitions N        of each case (5), after one that is not counted
  --milliseconds N       of one repetition of the cases that can run for any time (150)
  --cap-gib N            memory that the allocator may take in the fragmentation case (106)
  --settle-ms N          time between the end of a burst and the look at what is held (0)
  --only GLOB            cases whose name matches, for example '*/pair/small/*'
  --json FILE            write the results there, renewed after every case
  --time-limit SECONDS   give up after that long (120)
  --list                 print the cases of this driver and stop
  --help                 print this and stop
)";

namespace detail {

inline AllocatorOptions parse_allocator_options(int count, char** arguments) {
    AllocatorOptions options;
    options.gpu.settings = "profile=h200,clock=virtual,checker=off,data=off";
    const option known[] = {{"driver", required_argument, nullptr, 'd'},
                            {"kernels", required_argument, nullptr, 'k'},
                            {"sim-library", required_argument, nullptr, 'l'},
                            {"settings", required_argument, nullptr, 's'},
                            {"repetitions", required_argument, nullptr, 'r'},
                            {"milliseconds", required_argument, nullptr, 'm'},
                            {"cap-gib", required_argument, nullptr, 'c'},
                            {"settle-ms", required_argument, nullptr, 'e'},
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
            case 'r':
                options.repetitions = whole_number("repetitions", optarg, 1, 10'000);
                break;
            case 'm':
                options.milliseconds = whole_number("milliseconds", optarg, 1, 100'000);
                break;
            case 'c':
                options.cap_gib = whole_number("cap-gib", optarg, 1, 100'000);
                break;
            case 'e':
                options.settle_ms = whole_number("settle-ms", optarg, 0, 1'000'000);
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
                throw Failure("see --help for the options");
        }
    }
    if (optind < count) {
        throw Failure(std::string("what is '") + arguments[optind] + "'? See --help");
    }
    if (options.help) return options;
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
inline const char* volatile running_case = "the opening of the driver";

inline void give_up(int) {
    const auto say = [](const char* text) {
        if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(4);
    };
    say("the time limit is over, in ");
    say(running_case);
    say("; results so far are in the file of --json\n");
    _exit(3);
}

inline std::string allocator_report(const Bench& bench, const AllocatorOptions& options,
                                    bool complete) {
    Json json;
    json.open('{').member("benchmark", "allocators").member("complete", complete);
    json.member("simulated", bench.gpu.simulated()).member("device", bench.gpu.name());
    json.member("driver_version", bench.gpu.version()).key("settings").raw(bench.gpu.settings());
    write_machine(json);
    json.member("repetitions", options.repetitions).key("rows").open('[');
    for (const Row& row : bench.rows) {
        json.open('{').member("workload", row.workload).member("allocator", row.allocator);
        json.member("unit", row.unit);
        if (!row.error.empty()) json.member("error", row.error);
        if (!row.outcome.empty()) json.member("outcome", row.outcome);
        if (!row.values.empty()) {
            json.member("median", quantile(row.values, 0.5));
            json.member("p10", quantile(row.values, 0.1));
            json.member("p90", quantile(row.values, 0.9));
        }
        json.member("values", row.values).key("details").open('{');
        for (const auto& [name, value] : row.details) json.member(name, value);
        json.close('}').close('}');
    }
    return json.close(']').close('}').text();
}

inline void print_row(const Row& row) {
    std::printf("%-14s %-26s ", row.allocator.c_str(), row.workload.c_str());
    if (!row.values.empty()) {
        std::printf("%12.3f %s  (%.3f to %.3f)", quantile(row.values, 0.5), row.unit.c_str(),
                    quantile(row.values, 0.1), quantile(row.values, 0.9));
    }
    std::printf("  %s%s\n", row.outcome.c_str(), row.error.c_str());
    std::fflush(stdout);
}

inline int run_cases(const AllocatorOptions& options, AddCases add_cases) {
    std::signal(SIGALRM, give_up);
    alarm(static_cast<unsigned>(options.time_limit_s));
    Gpu gpu(options.gpu);
    Bench bench{gpu};
    GPU_CALL(gpu, cuCtxGetCurrent, &bench.context);
    bench.repetitions = options.repetitions;
    bench.seconds = options.milliseconds * 1e-3;
    bench.cap = static_cast<std::uint64_t>(options.cap_gib) * GiB;
    bench.settle_ms = options.settle_ms;
    Cases cases;
    add_cases(cases, bench, options);
    std::erase_if(cases, [&](const Case& each) {
        return fnmatch(options.only.c_str(), each.name.c_str(), 0) != 0;
    });
    if (cases.empty()) throw Failure("no case matches '" + options.only + "', see --list");
    if (options.list) {
        for (const Case& each : cases) std::puts(each.name.c_str());
        return 0;
    }
    std::printf("%s, CUDA %d.%d, %s, %zu cases\n", gpu.name().c_str(), gpu.version() / 1000,
                gpu.version() % 1000 / 10, gpu.driver().path().c_str(), cases.size());
    const auto save = [&](bool complete) {
        if (!options.json.empty()) {
            write_file(options.json, allocator_report(bench, options, complete));
        }
    };
    save(false);  // so that no older file is taken for this run's
    bool sound = true;
    for (const Case& each : cases) {
        running_case = each.name.c_str();
        const std::size_t before = bench.rows.size();
        try {
            each.measure();
        } catch (const std::exception& error) {
            sound = false;
            const std::size_t slash = each.name.find('/');
            Row row;
            row.allocator = each.name.substr(0, slash);
            row.workload = each.name.substr(slash + 1);
            row.error = error.what();
            bench.rows.push_back(std::move(row));
        }
        for (std::size_t i = before; i < bench.rows.size(); ++i) print_row(bench.rows[i]);
        save(&each == &cases.back());
    }
    return sound && gpu.clean() ? 0 : 1;
}

}  // namespace detail

// 0: all well; 1: a case failed, and the file says which; 2: nothing could be run.
inline int allocator_program(const char* name, AddCases add_cases, int count, char** arguments) {
    try {
        const AllocatorOptions options = detail::parse_allocator_options(count, arguments);
        if (options.help) {
            std::printf("usage: %s%s", name, kAllocatorHelp);
            return 0;
        }
        return detail::run_cases(options, add_cases);
    } catch (const Failure& failure) {
        std::fprintf(stderr, "%s: %s\n", name, failure.what());
        return 2;
    }
}

}  // namespace bench
