// The pool under the workloads by which allocators are compared.
#include <memory>

#include "allocators_cases.h"
#include "allocators_pool.h"
#include "allocators_program.h"

namespace {

using namespace bench;
namespace pool = vramkit::pool;

// What the background thread does to a scattered card, done now.
void tidy(pool::Pool& pool) {
    vramkit::Failure why;
    pool.defragment(why);
    if (why.kind != vramkit::Failure::Kind::none) raise(why);
}

// A pool that gives idle memory back soon enough for the burst case to wait for it.
pool::Config decaying(pool::Config config) {
    config.decay_ms = kBurstDecayMs;
    return config;
}

// What the loops cost by themselves.
struct Nothing {
    std::uint64_t allocate(std::uint64_t bytes, const Lane&) { return bytes; }
    void deallocate(std::uint64_t, std::uint64_t, const Lane&) {}
    Takes takes() const { return Takes::nothing; }
};

// Pairs with and without statistics in turn on one pool, so that drift hits both alike.
template <class Maker>
void measure_statistics(Bench& bench, Row row, Maker make) {
    const Lanes lanes(bench.gpu, 1);
    HeldMemory held(bench);
    const auto engine = held.make(make);
    PairWorker worker(*engine, lanes[0], kSmallSizes, 0);
    std::vector<double> with;
    std::vector<double> without;
    double pairs = 0;
    const auto measure = [&](bool on) {
        pool::Config config = engine->pool().config();
        config.enable_stats = on;
        vramkit::Failure why;
        if (!engine->pool().configure(config, why)) raise(why);
        const Tally tally = worker.for_seconds(bench.seconds / 2);
        pairs += tally.pairs;
        return ns_a_pair({tally});
    };
    for (int repetition = -1; repetition < 2 * bench.repetitions; ++repetition) {
        const double on = measure(true);
        const double off = measure(false);
        if (repetition < 0) continue;
        with.push_back(on);
        without.push_back(off);
        row.values.push_back(on - off);
    }
    row.details = {{"on_ns", quantile(with, 0.5)}, {"off_ns", quantile(without, 0.5)}};
    held.look();
    held.write(row, pairs_in_use(kSmallSizes, 1, pairs));
    bench.rows.push_back(std::move(row));
}

void add_cases(Cases& cases, Bench& bench, const AllocatorOptions& options) {
    const std::shared_ptr<vramkit::Driver> driver = detail::open_driver(options.gpu);
    const auto known = [driver, &bench](std::uint64_t cap) {
        pool::Config config;
        config.limit = cap;
        return std::make_unique<Engine<Known>>(driver, bench, config);
    };
    const auto foreign = [driver, &bench](std::uint64_t cap) {
        pool::Config config;
        config.limit = cap;
        return std::make_unique<Engine<Foreign>>(driver, bench, config);
    };
    const auto nothing = [](std::uint64_t) { return std::make_unique<Nothing>(); };
    const auto passing = [driver, &bench](std::uint64_t) {
        return std::make_unique<Engine<Known>>(driver, bench, decaying(pool::Config{}));
    };

    add_pair_cases(cases, bench, "vramkit", known);
    add_pair_cases(cases, bench, "vramkit_raw", foreign);
    add_case(cases, "empty_loop", "pair/small/1", "ns",
             [&bench, nothing](Row row) { measure_pairs(bench, row, kSmallSizes, 1, nothing); });
    add_case(cases, "empty_loop", "producer_consumer/1", "ns",
             [&bench, nothing](Row row) { measure_producer_consumer(bench, row, 1, nothing); });
    add_stream_cases(cases, bench, "vramkit", known);
    add_memory_cases(cases, bench, "vramkit", known);
    add_case(cases, "vramkit", "fragmentation/tidied", "ms", [&bench, known](const Row& row) {
        measure_fragmentation(bench, row, known,
                              [](Engine<Known>& engine) { tidy(engine.pool()); });
    });
    add_case(cases, "vramkit", "burst", "MiB", [&bench, passing](const Row& row) {
        measure_burst(bench, row, passing,
                      [](Engine<Known>& engine) { engine.pool().trim(false); });
    });
    add_case(cases, "vramkit", "statistics", "ns",
             [&bench, known](Row row) { measure_statistics(bench, row, known); });
}

}  // namespace

int main(int count, char** arguments) {
    return allocator_program("allocators", add_cases, count, arguments);
}
