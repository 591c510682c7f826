// What the gate adds to a kernel launch on the host: batches of launches through the gate and
// around it, straight to the driver, take turns in one process. gate.py runs it under the gate.
#include <dlfcn.h>

#include <chrono>
#include <optional>

#include "gate/control.h"
#include "objects.h"
#include "options.h"
#include "result_file.h"
#include "samples.h"

namespace {

using namespace bench;

// Few enough that a card's queue of launches does not fill up and make the host wait.
constexpr int kLaunches = 100;

struct Options {
    GpuOptions gpu;
    int batches = 2000;
    int streams = 1;
    std::string json;
};

std::optional<Options> parse(int count, char** arguments) {
    Options options;
    GpuChoice choice;
    OptionTable table("gate_launch --driver cuda|sim --kernels FILE",
                      "Nanoseconds that the gate adds to one launch of an empty kernel.");
    choice.add(table);
    table
        .number("batches", "of 100 launches each, and as many around the gate", options.batches, 1,
                1'000'000)
        .number("streams", "that the launches go round", options.streams, 1, 64)
        .text("json", "FILE", "write the results there", options.json);
    if (!table.read(count, arguments)) return std::nullopt;
    options.gpu = choice.checked();
    return options;
}

using Launch = decltype(vramkit::DriverTable::cuLaunchKernel);

Launch around_the_gate() {
    using GateDriver = void*(const char**);
    auto* const gate = reinterpret_cast<GateDriver*>(dlsym(RTLD_DEFAULT, "gateDriver"));
    if (gate == nullptr) throw Failure("the gate is not loaded: run it by benchmarks/gate.py");
    void* const driver = gate(nullptr);
    return reinterpret_cast<Launch>(dlsym(driver, "cuLaunchKernel"));
}

double measure(Gpu& gpu, Launch launch, const std::vector<Stream>& streams) {
    using Clock = std::chrono::steady_clock;
    std::uint64_t nanoseconds = 0;
    void* parameters[] = {&nanoseconds};
    const auto start = Clock::now();
    for (int number = 0; number < kLaunches; ++number) {
        const CUstream stream = streams[static_cast<std::size_t>(number) % streams.size()];
        gpu.check(launch(gpu.spin_kernel(), 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr),
                  "cuLaunchKernel");
    }
    const std::chrono::duration<double, std::nano> time = Clock::now() - start;
    GPU_CALL(gpu, cuCtxSynchronize);
    return time.count() / kLaunches;
}

void write(Json& json, const char* name, const std::vector<double>& values) {
    json.key(name).begin_object();
    json.field("median", quantile(values, 0.5)).field("p10", quantile(values, 0.1));
    json.field("p90", quantile(values, 0.9)).end_object();
}

int run(const Options& options) {
    Gpu gpu(options.gpu);
    std::vector<Stream> streams;
    for (int index = 0; index < options.streams; ++index) streams.emplace_back(gpu);
    const Launch through = gpu.call().cuLaunchKernel;
    const Launch around = around_the_gate();
    std::vector<double> natively, gated, added;
    for (int warmup = 0; warmup < 10; ++warmup) {
        measure(gpu, through, streams);
        measure(gpu, around, streams);
    }
    for (int batch = 0; batch < options.batches; ++batch) {
        const bool first = batch % 2 == 0;  // who goes first takes turns too
        const double one = measure(gpu, first ? through : around, streams);
        const double other = measure(gpu, first ? around : through, streams);
        gated.push_back(first ? one : other);
        natively.push_back(first ? other : one);
        added.push_back(gated.back() - natively.back());
    }
    Json json;
    json.begin_object().field("simulated", gpu.simulated()).field("gpu", gpu.name());
    write(json, "around", natively);
    write(json, "through", gated);
    write(json, "added", added);
    json.end_object();
    if (!options.json.empty()) write_file(options.json, json.text());
    std::printf("%s\n", json.text().c_str());
    return gpu.clean() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    return run_program("gate_launch", [&] { return parse(count, arguments); }, run);
}
