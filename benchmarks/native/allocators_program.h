// The part of a program that measures allocators which does not depend on the allocator: options
// and the run through the cases.
#pragma once

#include <fnmatch.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "allocators_report.h"
#include "options.h"
#include "time_limit.h"

namespace bench {

struct AllocatorOptions {
    GpuOptions gpu;
    std::string only = "*";
    std::string json;
    int repetitions = 5;
    int milliseconds = 100;
    int cap_gib = 106;
    int fill_gib = 100;
    int settle_ms = 2 * kBurstDecayMs;
    int time_limit_s = 120;
    bool list = false;
};

using AddCases = void (*)(Cases&, Bench&, const AllocatorOptions&);

namespace detail {

// Nothing where help was asked for and printed.
inline std::optional<AllocatorOptions> parse_allocator_options(const char* name, int count,
                                                               char** arguments) {
    AllocatorOptions options;
    GpuChoice choice;
    OptionTable table(std::string(name) + " --driver cuda|sim --kernels FILE",
                      "Runs allocator workloads, each a number of times, and writes every single "
                      "figure.");
    choice.add(table);
    table.number("repetitions", "of each case", options.repetitions, 1, 10'000)
        .number("milliseconds", "of one repetition of the cases that can run for any time",
                options.milliseconds, 1, 100'000)
        .number("cap-gib", "what the allocator may take in the fragmentation case", options.cap_gib,
                1, 100'000)
        .number("fill-gib", "what is allocated of that before every second block is freed",
                options.fill_gib, 1, 100'000)
        .number("settle-ms", "between the end of a burst and the look at what is held",
                options.settle_ms, 0, 1'000'000)
        .text("only", "GLOB", "cases whose name matches, for example '*/pair/small/*'",
              options.only)
        .text("json", "FILE", "write the results there, renewed after every case", options.json)
        .number("time-limit", "seconds, then give up", options.time_limit_s, 1, 1'000'000)
        .flag("list", "print the cases of this driver and stop", options.list);
    if (!table.read(count, arguments)) return std::nullopt;
    options.gpu = choice.checked();
    if (options.fill_gib > options.cap_gib) {
        throw Failure("--fill-gib is " + std::to_string(options.fill_gib) + "; it may be up to " +
                      "--cap-gib, " + std::to_string(options.cap_gib));
    }
    return options;
}

// The rows of one case: those it found, or the one that says what went wrong.
inline std::vector<Row> run_case(Bench& bench, const Case& each, bool& sound) {
    bench.rows.clear();
    try {
        each.measure(each.row);
    } catch (const std::exception& error) {
        sound = false;
        Row row = each.row;
        row.error = error.what();
        bench.rows.push_back(std::move(row));
    }
    return std::move(bench.rows);
}

inline int run_cases(const AllocatorOptions& options, AddCases add_cases) {
    Gpu gpu(options.gpu);
    Bench bench{gpu};
    GPU_CALL(gpu, cuCtxGetCurrent, &bench.context);
    bench.repetitions = options.repetitions;
    bench.seconds = options.milliseconds * 1e-3;
    bench.cap = static_cast<std::uint64_t>(options.cap_gib) * GiB;
    bench.fill = static_cast<std::uint64_t>(options.fill_gib) * GiB;
    bench.settle_ms = options.settle_ms;
    Cases cases;
    add_cases(cases, bench, options);
    std::erase_if(cases, [&](const Case& each) {
        return fnmatch(options.only.c_str(), each.name().c_str(), 0) != 0;
    });
    if (cases.empty()) throw Failure("no case matches '" + options.only + "', see --list");
    if (options.list) {
        for (const Case& each : cases) std::puts(each.name().c_str());
        return 0;
    }
    std::printf("%s, CUDA %d.%d, %s, %zu cases\n", gpu.name().c_str(), gpu.version() / 1000,
                gpu.version() % 1000 / 10, gpu.driver().path().c_str(), cases.size());
    AllocatorReport report(gpu, cases, options.json, options.repetitions);
    const TimeLimit limit(options.time_limit_s, [&] { report.time_over(options.time_limit_s); });
    bool sound = true;
    for (const Case& each : cases) report.add(run_case(bench, each, sound));
    return sound && gpu.clean() ? 0 : 1;
}

}  // namespace detail

// 0: all well; 1: a case failed, and the file says which; 2: nothing could be run; 3: the time was
// over, and the file says for which cases.
inline int allocator_program(const char* name, AddCases add_cases, int count, char** arguments) {
    return run_program(
        name, [&] { return detail::parse_allocator_options(name, count, arguments); },
        [&](const AllocatorOptions& options) { return detail::run_cases(options, add_cases); });
}

}  // namespace bench
