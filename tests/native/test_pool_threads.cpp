// Threads at the engine: its thread and theirs, locks, and counts.
#include <random>
#include <thread>
#include <vector>

#include "pool_bench.h"

using namespace bench;

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
