// The pool engine on the simulated GPU, with the checker on: order, accounting, shortage, threads.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "pool/pool.h"
#include "pool/threads.h"
#include "testing.h"

using namespace vramkit;
using namespace vramkit::pool;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::shared_ptr<Driver> simulated() {
    static const auto driver =
        std::get<std::shared_ptr<Driver>>(Driver::open_path(VRAMKIT_SIM_PATH));
    return driver;
}

// A fresh simulated card with its primary context current.
class Card {
  public:
    explicit Card(const char* settings = "checker=on,data=off,capacity=1GiB")
        : call(simulated()->call()) {
        const auto reset =
            reinterpret_cast<int (*)(const char*, char*, size_t)>(simulated()->symbol("simReset"));
        char error[256];
        CHECK_EQUAL(reset(settings, error, sizeof error), 0);
        CHECK_EQUAL(call.cuInit(0), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuCtxSetCurrent(context), CUDA_SUCCESS);
    }

    StreamRef stream() const {
        StreamRef made;
        unsigned long long id = 0;
        CHECK_EQUAL(call.cuStreamCreateWithPriority(&made.handle, CU_STREAM_NON_BLOCKING, 0),
                    CUDA_SUCCESS);
        CHECK_EQUAL(call.cuStreamGetId(made.handle, &id), CUDA_SUCCESS);
        made.id = id;
        made.told = id % 2 == 0;  // both kinds, in turn
        return made;
    }

    // Keeps the stream busy for a simulated second.
    void occupy(StreamRef stream) const {
        CUmodule module = nullptr;
        CUfunction spin = nullptr;
        CHECK_EQUAL(call.cuModuleLoadData(&module, "// vramkit built-in kernels 1"), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuModuleGetFunction(&spin, module, "vk_spin"), CUDA_SUCCESS);
        std::uint64_t nanoseconds = 1'000'000'000;
        void* arguments[] = {&nanoseconds};
        CHECK_EQUAL(
            call.cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream.handle, arguments, nullptr),
            CUDA_SUCCESS);
    }

    void use(std::uint64_t address, std::uint64_t bytes, StreamRef stream) const {
        CHECK_EQUAL(call.cuMemsetD8Async(address, 1, bytes, stream.handle), CUDA_SUCCESS);
    }

    std::string text(const char* control) const {
        const auto get = reinterpret_cast<size_t (*)(char*, size_t)>(simulated()->symbol(control));
        std::string result(get(nullptr, 0), '\0');
        get(result.data(), result.size() + 1);
        return result;
    }
    std::string reports() const { return text("simReports"); }
    std::uint64_t calls(const char* symbol) const {
        const std::string counts = text("simCallCounts");
        const std::size_t at = counts.find('"' + std::string(symbol) + "\":");
        return at == std::string::npos ? 0
                                       : std::stoull(counts.substr(at + std::strlen(symbol) + 3));
    }

    const DriverTable& call;
    CUcontext context = nullptr;
};

// Without its thread: the tests count calls.
std::shared_ptr<Pool> open_pool(const Card& card, Config config = {}) {
    config.background = false;
    Failure why;
    auto pool = Pool::open(simulated(), 0, card.context, config, why);
    CHECK(pool != nullptr);
    return pool;
}

std::uint64_t must_malloc(Pool& pool, std::uint64_t bytes, StreamRef stream) {
    Failure why;
    const std::uint64_t address = pool.malloc(bytes, stream, true, why);
    if (address == 0) CHECK_EQUAL(why.message + std::string(why.call), "a block");
    return address;
}

void must_free(Pool& pool, std::uint64_t address) {
    Failure why;
    if (!pool.free(address, {}, {}, why)) CHECK_EQUAL(why.message, "freed");
}

}  // namespace

TEST(a_class_is_the_smallest_that_fits_and_wastes_at_most_an_eighth) {
    for (std::uint64_t bytes = 1; bytes < 64 * kMiB; bytes += 1 + bytes / 300) {
        const ClassIndex index = fine_class_of(bytes);
        CHECK(class_bytes(index) >= bytes);
        CHECK(index == 0 || class_bytes(index - 1) < bytes ||
              class_bytes(index - 1) == class_bytes(index));
        if (bytes >= 2048 && bytes < kPage * 7 / 8) {
            CHECK(class_bytes(index) <= bytes + bytes / 8);
        }
        CHECK_EQUAL(class_bytes(index) % kUnit, std::uint64_t{0});
    }
    const ClassMap seed(Classes::seed, kUnit), wide(Classes::fine, 4096);
    CHECK_EQUAL(class_bytes(seed.of(300 * 1024)), std::uint64_t{512 * 1024});
    CHECK_EQUAL(class_bytes(seed.of(1)), std::uint64_t{256});
    for (std::uint64_t bytes = 1; bytes < 64 * kMiB; bytes += 1 + bytes / 300) {
        CHECK(class_bytes(wide.of(bytes)) >= bytes);
        CHECK_EQUAL(class_bytes(wide.of(bytes)) % 4096, std::uint64_t{0});
        CHECK(class_served_by(class_bytes(wide.of(bytes))) == wide.of(bytes));
    }
    CHECK_EQUAL(class_bytes(fine_class_of(kLargestRequest)), kLargestRequest);
}

TEST(a_block_freed_and_asked_for_again_on_its_stream_makes_no_driver_call) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    must_free(*pool, must_malloc(*pool, 4096, stream));
    const auto reset = reinterpret_cast<void (*)()>(simulated()->symbol("simResetCallCounts"));
    reset();
    for (int i = 0; i < 1000; ++i) must_free(*pool, must_malloc(*pool, 4000, stream));
    // The two the pool makes for the checker are not the driver's.
    const std::string counts = card.text("simCallCounts");
    CHECK_EQUAL(counts, std::string("{\"simBlockAlloc\":1000,\"simBlockFree\":1000}"));
}

TEST(another_stream_gets_a_block_only_behind_its_mark) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;  // every free spills
    config.batch_alloc_count = 1;
    config.limit = 2 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef first = card.stream(), second = card.stream();
    const std::uint64_t bytes = kPage;
    const std::uint64_t address = must_malloc(*pool, bytes, first);
    card.occupy(first);
    card.use(address, bytes, first);
    must_free(*pool, address);
    // The work is still under way, and there is no other memory: the stream has to wait for it.
    const std::uint64_t again = must_malloc(*pool, bytes, second);
    CHECK_EQUAL(again, address);
    CHECK_EQUAL(card.calls("cuStreamWaitEvent"), std::uint64_t{1});
    card.use(again, bytes, second);
    must_free(*pool, again);
    CHECK_EQUAL(card.reports(), std::string("[]"));
}

TEST(without_leave_to_wait_a_block_under_way_is_not_handed_out) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    config.limit = 2 * kMiB;
    const auto pool = open_pool(card, config);
    const StreamRef first = card.stream(), second = card.stream();
    const std::uint64_t address = must_malloc(*pool, kPage, first);
    card.occupy(first);
    card.use(address, kPage, first);
    must_free(*pool, address);
    Failure why;
    CHECK_EQUAL(pool->malloc(kPage, second, false, why), std::uint64_t{0});
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK(why.message.find("asked for 2097152 bytes") != std::string::npos);
    CHECK_EQUAL(card.calls("cuStreamWaitEvent"), std::uint64_t{0});
}

TEST(bad_pointers_and_sizes_are_refused_and_change_nothing) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    const std::uint64_t address = must_malloc(*pool, 1000, stream);
    const auto refused = [&](std::uint64_t pointer, std::optional<std::uint64_t> bytes) {
        Failure why;
        return !pool->free(pointer, bytes, {}, why) && why.kind == Failure::Kind::bad_value;
    };
    CHECK(refused(0, {}));
    CHECK(refused(address + 8, {}));
    CHECK(refused(address, 999));
    CHECK(refused(address + 1024 * kMiB, {}));
    Failure why;
    CHECK(pool->free(address, 1000, {}, why));
    CHECK(refused(address, {}));
    CHECK_EQUAL(pool->malloc(0, stream, true, why), std::uint64_t{0});
    CHECK_EQUAL(pool->malloc(kLargestRequest + 1, stream, true, why), std::uint64_t{0});
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(memory_of_idle_classes_serves_others_when_the_card_is_full) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 30; ++i) blocks.push_back(must_malloc(*pool, 32 * kMiB, stream));
    for (const std::uint64_t block : blocks) must_free(*pool, block);
    const std::uint64_t one = must_malloc(*pool, 900 * kMiB, stream);
    CHECK(one != 0);
    must_free(*pool, one);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    CHECK(pool->trim(true) > 0);
    CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    CHECK_EQUAL(card.reports(), std::string("[]"));
}

TEST(statistics_add_up) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream();
    const std::uint64_t a = must_malloc(*pool, 1000, stream);
    const std::uint64_t b = must_malloc(*pool, 3 * kMiB, stream);
    must_free(*pool, a);
    Stats stats = pool->stats();
    CHECK_EQUAL(stats.allocation_count, std::uint64_t{2});
    CHECK_EQUAL(stats.free_count, std::uint64_t{1});
    CHECK_EQUAL(stats.total_allocated, 1000 + 3 * kMiB);
    CHECK_EQUAL(stats.total_freed, std::uint64_t{1000});
    CHECK_EQUAL(stats.current_usage, 3 * kMiB);
    CHECK(stats.peak_usage >= 3 * kMiB);
    CHECK_EQUAL(stats.cache_hits + stats.cache_misses, std::uint64_t{2});
    pool->reset_stats();
    stats = pool->stats();
    CHECK_EQUAL(stats.allocation_count, std::uint64_t{0});
    CHECK_EQUAL(stats.current_usage, 3 * kMiB);
    must_free(*pool, b);
    CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
}

TEST(a_stream_may_be_destroyed_when_the_pool_is_told) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(), other = card.stream();
    const std::uint64_t address = must_malloc(*pool, 5 * kMiB, stream);
    card.use(address, 5 * kMiB, stream);
    must_free(*pool, address);
    tell_pools_of_closing_stream(card.call, stream.id);
    CHECK_EQUAL(card.call.cuStreamDestroy_v2(stream.handle), CUDA_SUCCESS);
    CHECK_EQUAL(card.call.cuCtxSynchronize(), CUDA_SUCCESS);
    const std::uint64_t again = must_malloc(*pool, 5 * kMiB, other);
    CHECK_EQUAL(again, address);
    must_free(*pool, again);
    CHECK_EQUAL(card.reports(), std::string("[]"));
}

TEST(a_block_freed_after_its_stream_was_destroyed_waits_for_that_streams_work) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef gone = card.stream();
    const std::uint64_t address = must_malloc(*pool, kPage, gone);
    card.occupy(gone);
    card.use(address, kPage, gone);
    tell_pools_of_closing_stream(card.call, gone.id);
    CHECK_EQUAL(card.call.cuStreamDestroy_v2(gone.handle), CUDA_SUCCESS);
    const StreamRef next = card.stream();  // may have the handle of the one that is gone
    must_free(*pool, address);
    const std::uint64_t other = must_malloc(*pool, kPage, next);
    CHECK(other != address);
    card.use(other, kPage, next);
    CHECK_EQUAL(pool->trim(false), std::uint64_t{0});
    CHECK_EQUAL(pool->trim(true), kPage);
    must_free(*pool, other);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    CHECK_EQUAL(card.reports(), std::string("[]"));
}

TEST(a_mark_without_an_event_holds_the_blocks_until_the_card_is_waited_for) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 0;
    const auto pool = open_pool(card, config);
    StreamRef first = card.stream(), second = card.stream();
    first.told = false;  // its handle may be used only while it is given to the pool
    const auto inject = reinterpret_cast<int (*)(const char*, uint64_t, uint64_t, int, double)>(
        simulated()->symbol("simInject"));
    const std::uint64_t address = must_malloc(*pool, kPage, first);
    card.occupy(first);
    card.use(address, kPage, first);
    CHECK_EQUAL(inject("cuEventCreate", 1, 1, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
    CHECK_EQUAL(inject("cuCtxSynchronize", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    must_free(*pool, address);
    CHECK_EQUAL(card.calls("cuCtxSynchronize"), std::uint64_t{0});  // free waits for nothing
    const std::uint64_t other = must_malloc(*pool, kPage, second);
    CHECK(other != address);
    CHECK_EQUAL(pool->trim(true), std::uint64_t{0});  // the card could not be waited for
    CHECK_EQUAL(pool->trim(true), kPage);
    must_free(*pool, other);
    CHECK_EQUAL(card.reports(), std::string("[]"));
}

TEST(caches_of_streams_that_are_gone_do_not_pile_up) {
    const Card card;
    const auto pool = open_pool(card);
    for (int i = 0; i < 300; ++i) {
        const StreamRef stream = card.stream();
        const std::uint64_t address = must_malloc(*pool, 1000, stream);
        card.use(address, 1000, stream);
        must_free(*pool, address);
        tell_pools_of_closing_stream(card.call, stream.id);
        CHECK_EQUAL(card.call.cuStreamDestroy_v2(stream.handle), CUDA_SUCCESS);
        CHECK_EQUAL(card.call.cuCtxSynchronize(), CUDA_SUCCESS);
    }
    CHECK(pool->cache_count() <= 2);
    CHECK_EQUAL(pool->stats().allocation_count, std::uint64_t{300});
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(a_stream_of_another_context_is_refused) {
    const Card card;
    const auto pool = open_pool(card);
    CUcontext other = nullptr;
    CHECK_EQUAL(card.call.cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
    const StreamRef stream = card.stream();
    Failure why;
    CHECK_EQUAL(pool->malloc(1000, stream, true, why), std::uint64_t{0});
    CHECK(why.kind == Failure::Kind::bad_value);
    CHECK_EQUAL(card.call.cuCtxDestroy_v2(other), CUDA_SUCCESS);
}

TEST(threads_short_of_memory_with_streams_that_come_and_go) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 4;
    config.batch_alloc_count = 3;
    config.limit = 24 * kMiB;
    {
        const auto pool = open_pool(card, config);
        std::vector<std::thread> threads;
        std::atomic<int> refused{0};
        for (int number = 0; number < 4; ++number) {
            threads.emplace_back([&, number] {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                std::mt19937 random(number);
                std::vector<std::uint64_t> live;
                for (int round = 0; round < 20; ++round) {
                    const StreamRef stream = card.stream();
                    for (int step = 0; step < 25; ++step) {
                        const std::uint64_t bytes = random() % 3 == 0
                                                        ? 2 * kMiB + random() % (2 * kMiB)
                                                        : 1 + random() % 500000;
                        Failure why;
                        const std::uint64_t address =
                            pool->malloc(bytes, stream, random() % 2 == 0, why);
                        if (address != 0) {
                            card.use(address, bytes, stream);
                            live.push_back(address);
                        } else {
                            ++refused;
                        }
                        while (live.size() > 5) {
                            must_free(*pool, live.front());
                            live.erase(live.begin());
                        }
                    }
                    // Blocks outlive it, and are freed by this thread later.
                    tell_pools_of_closing_stream(card.call, stream.id);
                    CHECK_EQUAL(card.call.cuStreamDestroy_v2(stream.handle), CUDA_SUCCESS);
                    if (round % 5 == 0) pool->stats();
                }
                for (const std::uint64_t address : live) must_free(*pool, address);
            });
        }
        for (std::thread& thread : threads) thread.join();
        CHECK(refused > 0);
        CHECK_EQUAL(pool->check_invariants(), std::string());
        CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
    }
    CHECK_EQUAL(card.reports(), std::string("[]"));
    CHECK(card.text("simLiveObjects").find("\"handles\":0,\"mappings\":0") != std::string::npos);
}

TEST(every_driver_call_of_every_path_may_fail_once) {
    const char* const calls[] = {"cuMemCreate",        "cuMemMap",         "cuMemSetAccess",
                                 "cuMemUnmap",         "cuMemRelease",     "cuEventCreate",
                                 "cuEventRecord",      "cuEventQuery",     "cuStreamWaitEvent",
                                 "cuEventSynchronize", "cuCtxSynchronize", "cuStreamGetCtx"};
    for (const char* call : calls) {
        for (std::uint64_t nth = 1; nth <= 4; ++nth) {
            const Card card("checker=on,data=off,capacity=64MiB");
            {
                Config config;
                config.thread_cache_max_blocks = 2;
                const auto pool = open_pool(card, config);
                const StreamRef first = card.stream(), second = card.stream();
                const auto inject =
                    reinterpret_cast<int (*)(const char*, uint64_t, uint64_t, int, double)>(
                        simulated()->symbol("simInject"));
                CHECK_EQUAL(inject(call, nth, 1, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
                std::vector<std::uint64_t> live;
                for (int i = 0; i < 60; ++i) {
                    Failure why;
                    const std::uint64_t bytes = (i % 3 == 0 ? 3 * kMiB : 100 * 1024);
                    const StreamRef stream = i % 2 == 0 ? first : second;
                    const std::uint64_t address = pool->malloc(bytes, stream, true, why);
                    if (address != 0) {
                        card.use(address, bytes, stream);
                        live.push_back(address);
                    }
                    if (live.size() > 8) {
                        must_free(*pool, live.front());
                        live.erase(live.begin());
                    }
                }
                for (const std::uint64_t address : live) must_free(*pool, address);
                CHECK_EQUAL(pool->check_invariants(), std::string());
                CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
                must_free(*pool, must_malloc(*pool, 1 * kMiB, first));
                pool->trim(true);
                pool->trim(true);
                CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
            }
            const std::string left = card.text("simLiveObjects");
            CHECK(left.find("\"handles\":0,\"mappings\":0") != std::string::npos);
            CHECK(left.find("\"events\":0") != std::string::npos);
            if (card.reports() != "[]") std::fprintf(stderr, "%s #%lu\n", call, nth);
            CHECK_EQUAL(card.reports(), std::string("[]"));
        }
    }
}

TEST(threads_and_streams_in_random_order_never_break_the_order) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 4;
    config.batch_alloc_count = 3;
    config.limit = 256 * kMiB;
    {
        const auto pool = open_pool(card, config);
        constexpr int kThreads = 4;
        std::vector<StreamRef> streams;
        for (int i = 0; i < 5; ++i) streams.push_back(card.stream());
        // A mailbox of blocks that one thread allocated and another frees.
        std::mutex lock;
        std::vector<std::pair<std::uint64_t, StreamRef>> mailbox;
        std::vector<std::thread> threads;
        for (int number = 0; number < kThreads; ++number) {
            threads.emplace_back([&, number] {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                std::mt19937 random(number);
                std::vector<std::pair<std::uint64_t, StreamRef>> live;
                for (int step = 0; step < 1500; ++step) {
                    const StreamRef stream = streams[random() % streams.size()];
                    const std::uint64_t bytes = random() % 8 == 0 ? 2 * kMiB + random() % (4 * kMiB)
                                                                  : 1 + random() % 300000;
                    Failure why;
                    const std::uint64_t address = pool->malloc(bytes, stream, true, why);
                    if (address == 0) {
                        CHECK(why.kind == Failure::Kind::out_of_memory);
                    } else {
                        card.use(address, bytes, stream);
                        live.emplace_back(address, stream);
                    }
                    if (random() % 4 == 0 && !live.empty()) {
                        const std::lock_guard guard(lock);
                        mailbox.push_back(live.back());
                        live.pop_back();
                    }
                    if (random() % 4 == 0) {
                        const std::lock_guard guard(lock);
                        if (!mailbox.empty()) {
                            live.push_back(mailbox.back());
                            mailbox.pop_back();
                        }
                    }
                    while (live.size() > 12 || (random() % 2 == 0 && !live.empty())) {
                        const std::size_t which = random() % live.size();
                        const auto [block, owner] = live[which];
                        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
                        Failure not_freed;
                        CHECK(pool->free(block, {}, {}, not_freed));
                    }
                    if (step % 400 == 399) pool->trim(false);
                }
                for (const auto& [block, owner] : live) must_free(*pool, block);
            });
        }
        for (std::thread& thread : threads) thread.join();
        for (const auto& [block, owner] : mailbox) must_free(*pool, block);
        CHECK_EQUAL(pool->check_invariants(), std::string());
        CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
    }
    CHECK_EQUAL(card.reports(), std::string("[]"));
    CHECK(card.text("simLiveObjects").find("\"handles\":0,\"mappings\":0") != std::string::npos);
}
