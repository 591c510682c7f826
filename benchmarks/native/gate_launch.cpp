// Host time of one kernel launch. gate.py runs it with and without the gate.
#include <chrono>
#include <optional>

#include "objects.h"
#include "options.h"
#include "result_file.h"
#include "samples.h"

namespace {

using namespace bench;

// Few enough that a card's queue of launches does not fill up and make the host wait.
constexpr int kLaunches = 500;

struct Options {
    GpuOptions gpu;
    int batches = 400;
    int streams = 1;
    std::string json;
};

std::optional<Options> parse(int count, char** arguments) {
    Options options;
    GpuChoice choice;
    OptionTable table("gate_launch --driver cuda|sim --kernels FILE",
                      "Nanoseconds of the host for one launch of an empty kernel.");
    choice.add(table);
    table.number("batches", "of 500 launches each", options.batches, 1, 1'000'000)
        .number("streams", "that the launches go round", options.streams, 1, 64)
        .text("json", "FILE", "write the results there", options.json);
    if (!table.read(count, arguments)) return std::nullopt;
    options.gpu = choice.checked();
    return options;
}

double measure(Gpu& gpu, const std::vector<Stream>& streams) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    for (int launch = 0; launch < kLaunches; ++launch) {
        gpu.spin(0, 1, 32, streams[static_cast<std::size_t>(launch) % streams.size()]);
    }
    const std::chrono::duration<double, std::nano> time = Clock::now() - start;
    GPU_CALL(gpu, cuCtxSynchronize);
    return time.count() / kLaunches;
}

int run(const Options& options) {
    Gpu gpu(options.gpu);
    std::vector<Stream> streams;
    for (int index = 0; index < options.streams; ++index) streams.emplace_back(gpu);
    Samples samples(options.batches);
    samples.repeat([&] { return measure(gpu, streams); });
    Json json;
    json.begin_object().field("simulated", gpu.simulated()).field("gpu", gpu.name());
    json.field("median", quantile(samples.values(), 0.5));
    json.field("p10", quantile(samples.values(), 0.1));
    json.field("p90", quantile(samples.values(), 0.9)).end_object();
    if (!options.json.empty()) write_file(options.json, json.text());
    std::printf("%s\n", json.text().c_str());
    return gpu.clean() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    return run_program("gate_launch", [&] { return parse(count, arguments); }, run);
}
