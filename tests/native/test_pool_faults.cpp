// Every driver call of every path fails: once at each of its occurrences, and from then on. Which
// calls a path makes is found by counting, so that a call added to the engine is tried too.
#include <algorithm>
#include <iterator>
#include <map>

#include "pool_paths.h"

using namespace paths;

namespace {

constexpr std::uint64_t kForEver = std::uint64_t{1} << 40;

struct Fault {
    std::string symbol;
    std::uint64_t nth = 1, times = 1;
    CUresult code = CUDA_ERROR_UNKNOWN;

    bool of(std::string_view name) const { return symbol == name; }
};

// {"cuMemCreate":3, ...}
std::map<std::string, std::uint64_t> counted_calls() {
    std::map<std::string, std::uint64_t> counts;
    const std::string json = gpu::text_of(gpu::sim().call_counts);
    for (std::size_t at = json.find('"'); at != std::string::npos; at = json.find('"', at)) {
        const std::size_t end = json.find('"', at + 1);
        const std::string symbol = json.substr(at + 1, end - at - 1);
        if (symbol.starts_with("cu") &&
            std::ranges::find(kOwnCalls, symbol) == std::end(kOwnCalls)) {
            counts[symbol] = figure(json, symbol);
        }
        at = end + 1;
    }
    return counts;
}

// The thread is as the path found it, but for the call that would have restored it.
void check_thread(const Bench& bench, const Fault& fault) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CHECK_EQUAL(bench.card.call.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL || fault.of("cuThreadExchangeStreamCaptureMode"));
    if (bench.other == nullptr) return;
    CUcontext current = nullptr;
    CHECK_EQUAL(bench.card.call.cuCtxGetCurrent(&current), CUDA_SUCCESS);
    CHECK(current == bench.other || fault.of("cuCtxPopCurrent_v2"));
    CHECK_EQUAL(bench.card.call.cuCtxDestroy_v2(bench.other), CUDA_SUCCESS);
    CHECK_EQUAL(bench.card.call.cuCtxSetCurrent(bench.card.context), CUDA_SUCCESS);
}

// A graph whose end nobody can tell keeps its memory until the pool goes.
bool leaves_a_graph(const Fault& fault) {
    return fault.of("cuUserObjectCreate") || fault.of("cuGraphRetainUserObject");
}

void check_usable(Bench& bench, const Fault& fault) {
    Pool& pool = *bench.pool;
    Stats stats = pool.stats();
    CHECK_EQUAL(stats.current_usage, bench.live_bytes());
    CHECK_EQUAL(stats.allocation_count - stats.free_count, bench.live.size());
    bench.give();
    CHECK_EQUAL(bench.live.size(), std::size_t{0});
    CHECK_EQUAL(pool.stats().current_usage, std::uint64_t{0});
    pool.trim(true);  // what was freed on a raw stream is nobody else's before
    const StreamRef fresh = bench.card.stream(true);
    const std::uint64_t address = must_malloc(pool, kMiB, fresh);
    bench.card.use(address, kMiB, fresh);
    must_free(pool, address);
    CHECK_EQUAL(pool.check_invariants(), std::string());
    pool.trim(true);
    if (!leaves_a_graph(fault)) {
        // With nvtx the pool keeps its limit, all of it idle.
        const Config config = pool.config();
        CHECK_EQUAL(pool.stats().reserved, config.nvtx ? config.limit : 0);
        CHECK_EQUAL(pool.stats().idle, pool.stats().reserved);
    }
    Failure why;
    CHECK(pool.close(why));
}

// A pool that goes while the driver refuses for good, or will not say when the work is done, has to
// leave what it held to the end of the context.
bool is_beyond_the_pool(const Fault& fault) { return fault.times > 1 || fault.of("cuMemFree_v2"); }

// The calls that the path made.
std::map<std::string, std::uint64_t> follow(const Path& path, const Fault& fault) {
    Bench bench(path.config);
    path.prepare(bench);
    gpu::sim().reset_call_counts();
    if (!fault.symbol.empty()) {
        CHECK_EQUAL(gpu::sim().inject(fault.symbol.c_str(), fault.nth, fault.times, fault.code, 0),
                    0);
    }
    path.run(bench);
    auto counts = counted_calls();
    gpu::sim().clear_faults();
    check_thread(bench, fault);
    const bool gone = bench.pool == nullptr;  // the path took it
    if (!gone) {
        CHECK_EQUAL(bench.pool->check_invariants(), std::string());
        if (!bench.pool->closed()) check_usable(bench, fault);
        bench.pool = bench.second = nullptr;
    }
    check_order(bench.card);
    if (!(gone && is_beyond_the_pool(fault))) check_nothing_left();
    return counts;
}

}  // namespace

TEST(every_driver_call_of_every_path_may_fail) {
    int tried = 0;
    for (const Path& path : kPaths) {
        const auto counts = follow(path, {});
        if (!counts.contains(path.call)) {
            CHECK_EQUAL(std::string(path.name), std::string("without ") + path.call);
        }
        const auto let_fail = [&](const Fault& fault) {
            const int before = testing::failures_in_test();
            follow(path, fault);
            ++tried;
            if (testing::failures_in_test() == before) return;
            std::fprintf(stderr, "  above: %s, %s fails with %d, %s %lu\n", path.name,
                         fault.symbol.c_str(), fault.code, fault.times == 1 ? "call" : "from call",
                         fault.nth);
        };
        for (const auto& [symbol, count] : counts) {
            for (const CUresult code : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
                for (std::uint64_t nth = 1; nth <= count; ++nth) {
                    // The quick version: the first calls and the last, which ends a loop.
                    if (nth <= 3 || nth == count || testing::soaking()) {
                        let_fail({symbol, nth, 1, code});
                    }
                }
                let_fail({symbol, 1, kForEver, code});
            }
        }
    }
    std::printf("%d faults\n", tried);
}

TEST(a_fence_without_an_event_holds_the_blocks_until_a_device_sync) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    const auto pool = open_pool(card, config);
    StreamRef first = card.stream(), second = card.stream();
    first.durable = false;  // its handle may be used only while it is given to the pool
    const std::uint64_t address = must_malloc(*pool, kPage, first);
    card.occupy(first);
    card.use(address, kPage, first);
    CHECK_EQUAL(gpu::sim().inject("cuEventCreate", 1, 1, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
    CHECK_EQUAL(gpu::sim().inject("cuMemFree_v2", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    must_free(*pool, address);
    CHECK_EQUAL(card.calls("cuMemFree_v2"), std::uint64_t{0});  // free waits for nothing
    const std::uint64_t other = must_malloc(*pool, kPage, second);
    CHECK(other != address);
    CHECK_EQUAL(pool->trim(true), std::uint64_t{0});  // the card could not be waited for
    CHECK_EQUAL(card.calls("cuMemAlloc_v2"), std::uint64_t{1});
    CHECK_EQUAL(pool->trim(true), kPage);
    CHECK_EQUAL(card.calls("cuMemAlloc_v2"), std::uint64_t{1});  // what the first one left served
    must_free(*pool, other);
    check_order(card);
}

TEST(on_a_full_card_the_wait_takes_host_memory) {
    for (const bool live : {false, true}) {
        const Card card("checker=on,data=off,capacity=64MiB");
        const StreamRef raw = card.stream(false);
        auto pool = open_pool(card);
        std::vector<std::uint64_t> blocks;
        Failure why;
        while (const std::uint64_t block = pool->malloc(kPage, raw, false, why)) {
            blocks.push_back(block);
        }
        CHECK(blocks.size() > 20);
        card.occupy(raw);
        for (const std::uint64_t block : blocks) {
            card.use(block, kPage, raw);
            if (!live) must_free(*pool, block);
        }
        gpu::sim().reset_call_counts();
        if (live) {
            pool = nullptr;
        } else {
            CHECK_EQUAL(pool->trim(true), blocks.size() * kPage);
            CHECK_EQUAL(pool->check_invariants(), std::string());
        }
        CHECK_EQUAL(card.calls("cuMemFreeHost"), std::uint64_t{1});
        CHECK_EQUAL(card.calls("cuMemFree_v2"), std::uint64_t{0});
        check_order(card);
        pool = nullptr;
        check_nothing_left();
    }
}

TEST(where_the_card_cannot_be_waited_for_the_memory_stays) {
    const Card card;
    const StreamRef raw = card.stream(false);
    const auto pool = open_pool(card);
    const std::uint64_t block = must_malloc(*pool, kPage, raw);
    card.occupy(raw);
    card.use(block, kPage, raw);
    must_free(*pool, block);
    CHECK_EQUAL(gpu::sim().inject("cuMemAlloc_v2", 1, 1, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
    CHECK_EQUAL(gpu::sim().inject("cuMemHostAlloc", 1, 1, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
    CHECK_EQUAL(pool->trim(true), std::uint64_t{0});
    CHECK_EQUAL(pool->stats().reserved, kPage);
    CHECK_EQUAL(must_malloc(*pool, kPage, raw), block);  // its own stream has it at any time
    must_free(*pool, block);
    CHECK_EQUAL(pool->trim(true), kPage);
    check_order(card);
}
