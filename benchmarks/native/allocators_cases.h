// The workloads that every allocator goes through, by name.
#pragma once

#include "allocators_memory.h"
#include "allocators_pairs.h"
#include "allocators_phases.h"
#include "allocators_streams.h"

namespace bench {

// Adds one case.
template <class Measure>
void add_case(Cases& cases, const std::string& allocator, const std::string& workload,
              const char* unit, Measure measure) {
    Row row;
    row.workload = workload;
    row.allocator = allocator;
    row.unit = unit;
    cases.push_back({std::move(row), measure});
}

template <class Maker>
void add_pair_cases(Cases& cases, Bench& bench, const std::string& allocator, Maker make) {
    for (const SizeRange* sizes : {&kSmallSizes, &kLargeSizes}) {
        for (const int threads : {1, 4, 8, 16}) {
            add_case(cases, allocator,
                     std::string("pair/") + sizes->name + "/" + std::to_string(threads), "ns",
                     [=, &bench](Row row) { measure_pairs(bench, row, *sizes, threads, make); });
        }
    }
    for (const int couples : {1, 8}) {
        add_case(cases, allocator, "producer_consumer/" + std::to_string(couples), "ns",
                 [=, &bench](Row row) { measure_producer_consumer(bench, row, couples, make); });
    }
    add_case(cases, allocator, "holes", "ns",
             [=, &bench](Row row) { measure_holes(bench, row, make); });
}

template <class Maker>
void add_stream_cases(Cases& cases, Bench& bench, const std::string& allocator, Maker make) {
    add_case(cases, allocator, "random_allocations", "ms",
             [=, &bench](Row row) { measure_random_allocations(bench, row, 10'000, MiB, make); });
    for (const std::size_t streams : {1, 2, 4}) {
        for (const bool warm : {false, true}) {
            add_case(
                cases, allocator,
                "multi_stream/" + std::to_string(streams) + (warm ? "/warm" : "/cold"), "ms",
                [=, &bench](Row row) { measure_multi_stream(bench, row, streams, warm, make); });
        }
    }
}

template <class Maker>
void add_memory_cases(Cases& cases, Bench& bench, const std::string& allocator, Maker make) {
    add_case(cases, allocator, "fragmentation", "ms",
             [=, &bench](Row row) { measure_fragmentation(bench, row, make, [](auto&) {}); });
    add_case(cases, allocator, "beside_kernel", "us",
             [=, &bench](const Row& row) { measure_beside_kernel(bench, row, make); });
    add_case(cases, allocator, "phases/alone", "ns",
             [=, &bench](const Row& row) { measure_phases(bench, row, false, make); });
    add_case(cases, allocator, "phases/touch", "ns",
             [=, &bench](const Row& row) { measure_phases(bench, row, true, make); });
}

}  // namespace bench
