// Threads at the engine: its own beside theirs, what they wait for, and what is counted of them.
#include <atomic>
#include <future>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "pool_bench.h"
#include "random_order.h"

using namespace bench;

namespace {

// What another thread may do at any time.
void look_on(Pool& pool, const std::atomic<bool>& done, bool trims = false) {
    for (std::uint64_t round = 0; !done; ++round) {
        Failure why;
        pool.layout();
        pool.stats();
        pool.step();
        if (round % 16 == 0) pool.defragment(why);
        if (trims && round % 16 == 8) pool.trim(false);
        std::this_thread::yield();
    }
}

}  // namespace

TEST(the_pools_own_thread_beside_those_that_use_and_change_it) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 4;
    config.batch_alloc_count = 3;
    config.decay_ms = 1;
    config.defrag_interval_ms = 1;
    config.defrag_threshold = 0;
    config.limit = 64 * kMiB;
    {
        const auto pool = open_pool(card, config, true);
        std::atomic<bool> done{false};
        std::thread meddler([&] {
            for (std::uint64_t round = 0; !done; ++round) {
                Failure why;
                Config changed = pool->config();
                changed.thread_cache_max_blocks = round % 8;
                changed.enable_stats = round % 3 != 0;
                changed.size_classes =
                    round % 2 == 0 ? SizeClasses::fine : SizeClasses::power_of_two;
                changed.cache_bytes = round % 5 == 0 && round % 8 != 0 ? kMiB : 32 * kMiB;
                CHECK(pool->configure(changed, why));
                pool->trim(round % 16 == 0);
                pool->defragment(why);
                pool->preallocate(3 * kMiB, 2, why);
                CHECK(pool->stats().reserved <= config.limit);
                pool->layout();
                pool->step();
                pool->reset_stats();
            }
        });
        random_order::run(card, *pool, 4, testing::rounds(20, 200));
        done = true;
        meddler.join();
        CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
        CHECK_EQUAL(pool->check_invariants(), std::string());
        Failure why;
        CHECK(pool->close(why));
    }
    check_order(card);
    check_nothing_left();
}

TEST(memory_that_a_thread_with_a_later_clock_made_idle_goes_back_too) {
    const Card card;
    const auto pool = open_pool(card);
    std::thread([&] {
        CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
        gpu::sim().advance(5 * kSecond);
        Failure why;
        CHECK(pool->preallocate(4 * kMiB, 2, why));
    }).join();
    CHECK_EQUAL(pool->trim(false), 8 * kMiB);
}

TEST(hot_paths_go_on_while_another_thread_waits_with_the_pools_lock) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef waited_for = card.stream(true), other = card.stream(true);
    // As many as a cache holds, and more, and a large one: those go to the stream cache and come
    // back, with the lock of that stream cache alone.
    std::vector<std::uint64_t> few(60), many(100);
    for (std::uint64_t& block : many) block = must_malloc(*pool, 4096, waited_for);
    for (std::uint64_t& block : few) block = must_malloc(*pool, 4096, other);
    std::uint64_t large = must_malloc(*pool, 5 * kMiB, waited_for);
    must_free(*pool, must_malloc(*pool, 3 * kMiB, waited_for));
    Gate gate(card, waited_for);
    // With the pool's lock, until the stream gets on.
    std::future<std::uint64_t> trimmed =
        std::async(std::launch::async, [&] { return pool->trim(true); });
    wait_for_call(card, "cuEventSynchronize", trimmed);
    gpu::sim().reset_call_counts();
    // Whoever takes it never comes back: the gate opens after this.
    for (int round = 0; round < 10; ++round) {
        for (const std::uint64_t block : few) must_free(*pool, block);
        for (const std::uint64_t block : many) must_free(*pool, block);
        must_free(*pool, large);
        for (std::uint64_t& block : few) block = must_malloc(*pool, 4096, other);
        for (std::uint64_t& block : many) block = must_malloc(*pool, 4096, waited_for);
        large = must_malloc(*pool, 5 * kMiB, waited_for);
    }
    CHECK_EQUAL(gpu::text_of(gpu::sim().call_counts),
                std::string("{\"simBlockAlloc\":1610,\"simBlockFree\":1610}"));
    gate.open();
    CHECK(trimmed.get() > 0);
    for (const std::uint64_t block : few) must_free(*pool, block);
    for (const std::uint64_t block : many) must_free(*pool, block);
    must_free(*pool, large);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    check_order(card);
}

TEST(the_peak_is_within_64_kib_a_thread_of_the_true_one) {
    const Card card("checker=off,data=off,capacity=1GiB");
    const auto pool = open_pool(card);
    constexpr int kThreads = 4, kStreams = 2;
    std::mutex lock;
    std::uint64_t live = 0, peak = 0;
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < kThreads; ++seed) {
        threads.emplace_back([&, seed] {
            CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
            const StreamRef streams[kStreams] = {card.stream(), card.stream()};
            std::mt19937 random(seed);
            std::vector<std::pair<std::uint64_t, std::uint64_t>> held;
            for (int step = 0; step < 3000; ++step) {
                // Up and down by turns, so that the peak moves.
                const bool up = random() % 100 < (step / 300 % 2 == 0 ? 65u : 40u);
                const std::lock_guard guard(lock);
                if (up || held.empty()) {
                    const std::uint64_t bytes = 1 + random() % (random() % 9 == 0 ? 200000 : 3000);
                    held.emplace_back(must_malloc(*pool, bytes, streams[step % kStreams]), bytes);
                    live += bytes;
                    peak = std::max(peak, live);
                } else {
                    std::swap(held[random() % held.size()], held.back());
                    must_free(*pool, held.back().first);
                    live -= held.back().second;
                    held.pop_back();
                }
            }
            const std::lock_guard guard(lock);
            for (const auto& [address, bytes] : held) {
                must_free(*pool, address);
                live -= bytes;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    const Stats stats = pool->stats();
    CHECK_EQUAL(stats.current_usage, std::uint64_t{0});
    CHECK(stats.peak_usage <= peak);
    CHECK(stats.peak_usage + kThreads * 64 * 1024 >= peak);
    CHECK(peak > 4 * kThreads * 64 * 1024);
}

TEST(threads_that_cut_and_join_the_large_blocks_of_one_stream) {
    const Card card("checker=on,data=off,capacity=32GiB");
    Config config;
    config.thread_cache_max_blocks = 1;
    config.limit = 12800 * kMiB;  // cut up to 800 MiB, from 200 free
    config.decay_ms = 100;
    config.defrag_interval_ms = 1;
    config.defrag_threshold = 0;
    {
        const auto pool = open_pool(card, config, true);
        const StreamRef shared = card.stream(true);
        std::atomic<bool> done{false};
        std::thread onlooker([&] { look_on(*pool, done); });
        std::vector<std::thread> threads;
        for (unsigned seed = 0; seed < 4; ++seed) {
            threads.emplace_back([&, seed] {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                std::mt19937 random(seed);
                std::vector<std::uint64_t> live;
                for (int step = 0; step < 400; ++step) {
                    const std::uint64_t bytes = 2 * kMiB * (1 + random() % 16) - random() % 1000;
                    live.push_back(must_malloc(*pool, bytes, shared));
                    card.use(live.back(), bytes, shared);
                    while (live.size() > 2 || (random() % 2 == 0 && !live.empty())) {
                        std::swap(live[random() % live.size()], live.back());
                        must_free(*pool, live.back());
                        live.pop_back();
                    }
                }
                for (const std::uint64_t address : live) must_free(*pool, address);
            });
        }
        for (std::thread& thread : threads) thread.join();
        done = true;
        onlooker.join();
        CHECK(pool->stats().peak_reserved <= 800 * kMiB);
        CHECK_EQUAL(pool->check_invariants(), std::string());
    }
    check_order(card);
    check_nothing_left();
}

// A large block is in the thread cache until its thread spills it.
TEST(a_cache_may_be_emptied_between_a_free_and_its_spill) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true);
    const std::uint64_t block = must_malloc(*pool, 4 * kMiB, stream);
    Pool::Full full;
    CHECK(pool->free_cached(block, 0, nullptr, full) == Pool::Freed::yes);
    CHECK(full.cache != nullptr);
    std::thread([&] {
        CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
        CHECK_EQUAL(pool->trim(false), 4 * kMiB);
    }).join();
    pool->spill(full);
    CHECK_EQUAL(pool->check_invariants(), std::string());
    CHECK_EQUAL(pool->stats().cached, std::uint64_t{0});
}

TEST(threads_short_of_memory_with_streams_that_come_and_go) {
    const Card card;
    Config config;
    config.thread_cache_max_blocks = 4;
    config.batch_alloc_count = 3;
    config.limit = 12 * kMiB;  // less than one thread may have live
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
                    card.close(stream);
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
    check_order(card);
    check_nothing_left();
}

TEST(of_threads_that_free_a_lent_block_one_does_and_no_use_is_lost) {
    const Card card;
    const auto pool = open_pool(card);
    const StreamRef owner = card.stream(true), other = card.stream(true);
    constexpr int kThreads = 4;
    for (int round = 0; round < 100; ++round) {
        const std::uint64_t address = must_malloc(*pool, 4 * kMiB, owner);
        Failure why;
        CHECK(pool->also_used_on(address, other, why));
        card.occupy(other);
        std::atomic<int> ready{0}, freed{0};
        const auto free = [&] {
            CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
            ++ready;
            while (ready < kThreads) {
            }
            Failure refused;
            freed += pool->free(address, {}, {}, refused);
        };
        std::vector<std::thread> threads;
        for (int i = 0; i < kThreads; ++i) threads.emplace_back(free);
        for (std::thread& thread : threads) thread.join();
        CHECK_EQUAL(freed.load(), 1);
        const std::uint64_t taken = must_malloc(*pool, 4 * kMiB, owner);
        if (!CHECK(taken != address)) break;
        must_free(*pool, taken);
        CHECK_EQUAL(card.call.cuStreamSynchronize(other.handle), CUDA_SUCCESS);
        pool->step();
    }
    CHECK_EQUAL(pool->check_invariants(), std::string());
}

TEST(of_threads_that_free_one_large_block_one_does) {
    const Card card;
    {
        const auto pool = open_pool(card);
        const StreamRef stream = card.stream(true);
        constexpr int kRounds = 1000;
        std::uint64_t block = 0;
        std::atomic<int> freed{0}, arrived{0};
        const auto meet = [&](int times) {
            ++arrived;
            while (arrived < 2 * times) std::this_thread::yield();
        };
        const auto free_all = [&](bool allocates) {
            CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
            for (int round = 0; round < kRounds; ++round) {
                if (allocates) block = must_malloc(*pool, 4 * kMiB, stream);
                meet(2 * round + 1);
                Failure why;
                freed += pool->free(block, {}, stream, why);
                meet(2 * round + 2);
            }
        };
        std::thread other(free_all, false);
        free_all(true);
        other.join();
        CHECK_EQUAL(freed.load(), kRounds);
        CHECK_EQUAL(pool->stats().waiting, 4 * kMiB);
        CHECK_EQUAL(pool->stats().cached, std::uint64_t{0});
        CHECK_EQUAL(pool->check_invariants(), std::string());
    }
    check_order(card);
    check_nothing_left();
}

TEST(a_reset_of_the_driver_beside_threads_that_work) {
    const Card card("checker=off,data=off,capacity=1GiB");
    Config config;
    config.thread_cache_max_blocks = 2;  // most frees reach the stream cache
    const auto pool = open_pool(card, config);
    std::atomic<int> working{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
            const StreamRef stream = card.stream(false);
            Failure why;
            for (int round = 0; why.kind == Failure::Kind::none; ++round) {
                const std::uint64_t bytes = round % 4 == 0 ? 3 * kMiB : 4096;
                const std::uint64_t block = pool->malloc(bytes, stream, true, why);
                if (block != 0) pool->free(block, {}, stream, why);
                if (round == 100) ++working;
            }
            CHECK(why.kind == Failure::Kind::closed);
        });
    }
    while (working < 3) std::this_thread::yield();
    pool->driver_reset();
    for (std::thread& thread : threads) thread.join();
    CHECK(pool->closed());
}

TEST(a_stream_that_ends_while_its_request_waits_loses_no_memory) {
    const Card card;
    Config config;
    config.limit = 16 * kMiB;
    {
        const auto pool = open_pool(card, config);
        const StreamRef busy = card.stream(true), asks = card.stream(true);
        std::vector<std::uint64_t> blocks;
        for (int i = 0; i < 4; ++i) blocks.push_back(must_malloc(*pool, 4 * kMiB, busy));
        Gate gate(card, busy);
        for (const std::uint64_t each : blocks) card.use(each, 4 * kMiB, busy);
        must_free(*pool, blocks[0]);
        must_free(*pool, blocks[2]);
        card.call.cuCtxSetCurrent(card.context);
        auto waiting = std::async(std::launch::async, [&] {
            CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
            Failure why;
            return pool->malloc(6 * kMiB, asks, true, why);
        });
        wait_for_call(card, "cuEventSynchronize", waiting);
        card.close(asks);
        gate.open();
        const std::uint64_t address = waiting.get();
        CHECK(address != 0);
        CHECK_EQUAL(pool->check_invariants(), std::string());
        for (const std::uint64_t each : {address, blocks[1], blocks[3]}) must_free(*pool, each);
        pool->trim(true);
        CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
    }
    check_order(card);
}

// Ranges of one stream lie beside those of others, which cut, join and move theirs meanwhile; wrong
// frees read the records of all of them.
TEST(threads_of_several_streams_on_neighbouring_ranges) {
    const Card card("checker=on,data=off,capacity=1GiB");
    Config config;
    config.decay_ms = 5;
    config.defrag_interval_ms = 5;
    config.limit = 200 * kMiB + 12345;
    {
        const auto pool = open_pool(card, config, true);
        std::vector<StreamRef> streams;
        for (int i = 0; i < 3; ++i) streams.push_back(card.stream(true));
        std::atomic<bool> done{false};
        std::thread onlooker([&] { look_on(*pool, done, true); });
        std::vector<std::thread> threads;
        for (unsigned seed = 0; seed < 4; ++seed) {
            threads.emplace_back([&, seed] {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                std::mt19937 random(seed);
                std::vector<std::uint64_t> live;
                for (int step = 0; step < 400; ++step) {
                    const StreamRef& stream = streams[random() % streams.size()];
                    const std::uint64_t bytes = random() % 3 == 0   ? 1 + random() % 60000
                                                : random() % 2 == 0 ? 1 + random() % (2 * kMiB)
                                                                    : 1 + random() % (12 * kMiB);
                    Failure why;
                    const std::uint64_t address = pool->malloc(bytes, stream, random() % 2, why);
                    if (address != 0) {
                        card.use(address, bytes, stream);
                        live.push_back(address);
                        if (bytes > 200000) CHECK(!pool->free(address + 65536, {}, {}, why));
                    }
                    while (live.size() > 12 || (random() % 2 == 0 && !live.empty())) {
                        std::swap(live[random() % live.size()], live.back());
                        must_free(*pool, live.back());
                        live.pop_back();
                    }
                }
                for (const std::uint64_t address : live) must_free(*pool, address);
            });
        }
        for (std::thread& thread : threads) thread.join();
        done = true;
        onlooker.join();
        CHECK_EQUAL(pool->check_invariants(), std::string());
    }
    check_order(card);
    check_nothing_left();
}

// Memory is taken in larger steps while several threads need some. A step has time.
TEST(a_malloc_beside_steps_takes_no_more_than_it_needs) {
    const Card card("checker=off,data=off,capacity=8GiB");
    const auto pool = open_pool(card);
    const StreamRef stream = card.stream(true);
    const std::uint64_t held = must_malloc(*pool, 1024 * kMiB, stream);
    std::atomic<bool> ended{false};
    std::thread steps([&] {
        while (!ended.load()) pool->step();
    });
    std::vector<std::uint64_t> blocks;
    constexpr std::size_t kBlocks = 500;
    for (std::size_t i = 0; i < kBlocks; ++i) blocks.push_back(must_malloc(*pool, kPage, stream));
    ended = true;
    steps.join();
    CHECK(pool->stats().device_growths >= kBlocks);  // with larger steps: an 8th
    for (const std::uint64_t block : blocks) must_free(*pool, block);
    must_free(*pool, held);
}

// It needs memory too, but does not stand in the way.
TEST(a_malloc_beside_one_that_waits_for_work_takes_no_more_than_it_needs) {
    const Card card("checker=off,data=off,capacity=8GiB");
    const auto pool = open_pool(card);
    const StreamRef busy = card.stream(true), asks = card.stream(true), stream = card.stream(true);
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 7; ++i) blocks.push_back(must_malloc(*pool, 1024 * kMiB, busy));
    Gate gate(card, busy);
    for (const int i : {1, 3, 5}) must_free(*pool, std::exchange(blocks[i], 0));
    gpu::sim().reset_call_counts();
    auto waiting = std::async(std::launch::async, [&] {
        CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
        return must_malloc(*pool, 3072 * kMiB, asks);
    });
    wait_for_call(card, "cuEventSynchronize", waiting);
    const std::uint64_t before = pool->stats().device_growths;
    constexpr std::size_t kBlocks = 64;
    for (std::size_t i = 0; i < kBlocks; ++i) blocks.push_back(must_malloc(*pool, kPage, stream));
    CHECK_EQUAL(pool->stats().device_growths, before + kBlocks);  // with larger steps: an 8th
    gate.open();
    blocks.push_back(waiting.get());
    for (const std::uint64_t block : blocks) {
        if (block != 0) must_free(*pool, block);
    }
}
