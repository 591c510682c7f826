// Ends that meet the engine: of threads, of processes that were forked, of slabs beside pointers
// that are freed twice.
//
// Each scenario has a process of its own: this one makes no pool, so that none of them is a fork of
// one that did.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>

#include "children.h"
#include "pool_bench.h"

using namespace bench;
using children::exited_well;
using children::status_of;

namespace {

// Whether a thread of this process waits for something.
bool is_asleep(const std::filesystem::path& task) {
    std::string stat;
    std::getline(std::ifstream(task / "stat"), stat);
    const std::size_t name_end = stat.rfind(')');
    return name_end != std::string::npos && stat.substr(name_end + 2, 1) == "S";
}

void wait_until_the_pools_thread_is_asleep() {
    for (;;) {
        for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
            std::string name;
            std::getline(std::ifstream(task.path() / "comm"), name);
            if (name == "vramkit-pool" && is_asleep(task.path())) return;
        }
        std::this_thread::yield();
    }
}

// Made before the thread's first call, it is destroyed after all that the engine and the simulated
// driver keep for the thread.
struct Late {
    std::shared_ptr<Pool> pool;
    StreamRef stream;
    std::uint64_t address = 0;

    ~Late() {
        if (pool == nullptr) return;
        must_free(*pool, address);
        for (const std::uint64_t bytes : {std::uint64_t{5000}, 3 * kMiB}) {
            const std::uint64_t again = must_malloc(*pool, bytes, stream);
            Failure why;
            CHECK(!pool->free(again + 8, {}, {}, why));
            must_free(*pool, again);
        }
    }
};

void leave_a_block(Late& late, const std::shared_ptr<Pool>& pool, const StreamRef& stream) {
    late.pool = pool;
    late.stream = stream;
    late.address = must_malloc(*pool, 4096, stream);
}

}  // namespace

TEST(an_object_of_a_thread_may_free_after_the_threads_caches_are_gone) {
    CHECK(exited_well(status_of([] {
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef stream = card.stream(true);
        for (int round = 0; round < 20; ++round) {
            std::thread([&] {
                thread_local Late late;
                leave_a_block(late, pool, stream);
            }).join();
        }
        CHECK_EQUAL(pool->cache_count(), std::size_t{0});
        CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
        CHECK_EQUAL(pool->stats().allocation_count, std::uint64_t{60});
        CHECK_EQUAL(pool->check_invariants(), std::string());
        // What they freed is there for others.
        CHECK(pool->trim(true) > 0);
        CHECK_EQUAL(pool->stats().reserved, std::uint64_t{0});
        check_order(card);
    })));
}

TEST(a_static_object_may_free_while_the_process_exits) {
    CHECK(exited_well(status_of([] {
        // Destroyed after `late`: what that finds wrong is the exit status.
        struct Status {
            ~Status() {
                if (testing::failures_in_test() != 0) ::_exit(1);
            }
        };
        static Status status;
        static Late late;
        const Card card;
        leave_a_block(late, open_pool(card), card.stream(true));
    })));
}

TEST(a_forked_child_drops_a_pool_whose_thread_is_asleep) {
    CHECK(exited_well(status_of([] {
        const Card card;
        auto pool = open_pool(card, {}, true);
        const StreamRef stream = card.stream(true);
        const std::uint64_t address = must_malloc(*pool, 3 * kMiB, stream);
        card.use(address, 3 * kMiB, stream);
        must_free(*pool, address);
        pool->trim(false);  // leaves fences
        wait_until_the_pools_thread_is_asleep();
        CHECK(exited_well(status_of([&] {
            pool = nullptr;
            ::_exit(0);
        })));
        // The parent goes on.
        must_free(*pool, must_malloc(*pool, 3 * kMiB, stream));
        CHECK_EQUAL(pool->check_invariants(), std::string());
        pool = nullptr;
        check_nothing_left();
    })));
}

TEST(what_the_background_work_throws_does_not_end_it) {
    std::atomic<int> calls{0};
    BackgroundThread background([&]() -> std::int64_t {
        if (++calls == 1) throw std::bad_alloc();
        return std::int64_t{1} << 40;
    });
    background.wake();
    while (calls == 0) std::this_thread::yield();
    background.wake();
    while (calls < 2) std::this_thread::yield();
    background.stop();
}

TEST(several_may_stop_the_background_thread_and_each_finds_it_over) {
    for (int round = 0; round < 20; ++round) {
        std::atomic<int> stopping{0};
        std::atomic<bool> begun{false}, over{false};
        BackgroundThread background([&]() -> std::int64_t {
            begun = true;
            while (stopping < 3) std::this_thread::yield();
            // All three have turns in which one that did not wait for the end would return.
            for (int turn = 0; turn < 1000; ++turn) std::this_thread::yield();
            over = true;
            return std::int64_t{1} << 40;
        });
        background.wake();
        while (!begun) std::this_thread::yield();
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; ++i) {
            threads.emplace_back([&] {
                ++stopping;
                background.stop();
                CHECK(over.load());
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
}

TEST(a_thread_that_waits_for_the_gpu_holds_up_nobody) {
    CHECK(exited_well(status_of([] {
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef stream = card.stream(true), other = card.stream(true);
        must_free(*pool, must_malloc(*pool, 3 * kMiB, stream));
        Gate gate(card, stream);
        std::future<std::uint64_t> trimmed =
            std::async(std::launch::async, [&] { return pool->trim(true); });
        wait_for_call(card, "cuEventSynchronize", trimmed);
        // Whoever takes a lock that it holds never comes back: the gate opens after this. Slow
        // paths of the same pool, the end of a thread that used it, and another pool.
        std::thread([&] { must_free(*pool, must_malloc(*pool, 5 * kMiB, other)); }).join();
        CHECK_EQUAL(pool->cache_count(), std::size_t{1});
        auto second = open_pool(card);
        must_free(*second, must_malloc(*second, 4096, other));
        second->trim(false);  // else its end would wait for the card
        second = nullptr;
        gate.open();
        CHECK(trimmed.get() > 0);
        CHECK_EQUAL(pool->check_invariants(), std::string());
    })));
}

TEST(a_second_close_returns_when_the_first_is_done) {
    CHECK(exited_well(status_of([] {
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef stream = card.stream(true);
        const std::uint64_t block = must_malloc(*pool, 4 * kMiB, stream);
        Gate gate(card, stream);
        must_free(*pool, block);
        const auto close = [&] {
            Failure why;
            CHECK(pool->close(why));
            return pool->stats().reserved;
        };
        std::future<std::uint64_t> first = std::async(std::launch::async, close);
        wait_for_call(card, "cuEventSynchronize", first);
        std::future<std::uint64_t> second = std::async(std::launch::async, close);
        gate.open();
        CHECK_EQUAL(first.get(), std::uint64_t{0});
        CHECK_EQUAL(second.get(), std::uint64_t{0});
    })));
}

TEST(a_pool_may_go_while_threads_that_used_it_end) {
    CHECK(exited_well(status_of([] {
        const Card card("checker=off,data=off,capacity=1GiB");
        const StreamRef stream = card.stream(true);
        for (int round = 0; round < 100; ++round) {
            auto pool = open_pool(card);
            std::atomic<int> used{0};
            std::vector<std::thread> threads;
            for (int i = 0; i < 3; ++i) {
                threads.emplace_back([&] {
                    must_free(*pool, must_malloc(*pool, 4096, stream));
                    ++used;
                });
            }
            while (used < 3) std::this_thread::yield();
            pool = nullptr;
            for (std::thread& thread : threads) thread.join();
        }
        check_nothing_left();
    })));
}

TEST(records_of_slabs_are_used_again_and_say_that_nothing_is_in_use) {
    SlabRecords records;
    std::unique_ptr<Slab> slab = records.take(4096, 100);
    Slab* const first = slab.get();
    first->record(99).set(State::live, 1, 4000);
    records.give(std::move(slab));
    CHECK(first->record(99).state() == State::idle);
    // As many blocks or a little fewer, of the same spread.
    for (const std::uint32_t count : {100u, 65u, 128u}) {
        slab = records.take(8192, count);
        CHECK(slab.get() == first);
        CHECK_EQUAL(std::uint32_t{slab->count}, count);
        CHECK_EQUAL(std::uint64_t{slab->block_bytes}, std::uint64_t{8192});
        records.give(std::move(slab));
    }
    for (const auto& [bytes, count] :
         std::map<std::uint64_t, std::uint32_t>{{4096, 64}, {256, 100}}) {
        slab = records.take(bytes, count);
        CHECK(slab.get() != first);
        records.give(std::move(slab));
    }
}

TEST(a_pointer_freed_twice_while_its_memory_goes_back_does_no_harm) {
    CHECK(exited_well(status_of([] {
        const Card card("checker=off,data=off,capacity=1GiB");
        const auto pool = open_pool(card);
        const StreamRef stream = card.stream(true);
        std::atomic<std::uint64_t> stale{0};
        std::atomic<bool> done{false};
        std::thread twice([&] {
            while (!done) {
                Failure why;
                if (const std::uint64_t address = stale) pool->free(address, {}, {}, why);
            }
        });
        // Of many sizes: a record serves another slab next time.
        for (std::uint64_t round = 0; round < 2000; ++round) {
            const std::uint64_t bytes = round % 2 == 0 ? (2 + round % 7) * kMiB : 300 + round * 7;
            const std::uint64_t address = must_malloc(*pool, bytes, stream);
            Failure why;
            pool->free(address, {}, {}, why);
            stale = address;
            pool->trim(true);
            stale = 0;
        }
        done = true;
        twice.join();
        CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
        CHECK_EQUAL(pool->check_invariants(), std::string());
    })));
}

TEST(what_is_free_adds_up_to_what_the_layout_shows) {
    CHECK(exited_well(status_of([] {
        const Card card;
        Config config;
        config.thread_cache_max_blocks = 8;
        const auto pool = open_pool(card, config);
        const StreamRef stream = card.stream(true);
        std::vector<std::uint64_t> blocks;
        for (std::uint64_t i = 0; i < 400; ++i) {
            const std::uint64_t bytes = i % 9 == 0 ? 2 * kMiB + i * 10000 : 100 + i * i;
            blocks.push_back(must_malloc(*pool, bytes, stream));
            if (i % 3 == 0) {
                must_free(*pool, blocks.back());
                blocks.pop_back();
            }
        }
        for (std::size_t i = 0; i < blocks.size(); i += 2) must_free(*pool, blocks[i]);
        Failure why;
        CHECK(pool->preallocate(1000, 5000, why));
        CHECK_EQUAL(pool->check_invariants(), std::string());
        const Stats stats = pool->stats();
        const vramkit::pool::Layout layout = pool->layout();
        // What is below the largest request is of no use to it.
        const std::uint64_t largest = 2 * kMiB + 396 * 10000;
        const auto unusable = [&](std::uint64_t size) { return size < largest ? size : 0; };
        std::map<State, std::uint64_t> bytes;
        std::map<std::uint64_t, std::pair<std::uint64_t, State>> ranges;  // large blocks
        std::map<std::uint64_t, std::uint64_t> used;                      // by slabs and blocks
        std::uint64_t of_no_use = 0;
        for (const auto& slab : layout.slabs) used[slab.address] = slab.bytes;
        for (const auto& block : layout.blocks) {
            bytes[block.state] += block.bytes;
            const auto slab = used.upper_bound(block.address);
            if (slab != used.begin() &&
                block.address < std::prev(slab)->first + std::prev(slab)->second) {
                if (block.state != State::live) of_no_use += unusable(block.bytes);
            } else {
                ranges[block.address] = {block.bytes, block.state};
            }
        }
        // Free neighbours count as one: the next request that needs it joins them.
        for (auto range = ranges.begin(); range != ranges.end();) {
            std::uint64_t end = range->first, run = 0;
            const State state = range->second.second;
            for (; range != ranges.end() && range->first == end && range->second.second == state;
                 ++range) {
                used[range->first] = range->second.first;
                end += range->second.first;
                run += range->second.first;
            }
            if (state != State::live) of_no_use += unusable(run);
        }
        // What lies in no slab and no block is idle.
        std::uint64_t idle = 0;
        for (const auto& extent : layout.extents) {
            std::uint64_t at = extent.address;
            const auto count_gap = [&](std::uint64_t end) {
                idle += end - at;
                of_no_use += unusable(end - at);
            };
            for (auto one = used.lower_bound(at);
                 one != used.end() && one->first < extent.address + extent.bytes; ++one) {
                count_gap(one->first);
                at = one->first + one->second;
            }
            count_gap(extent.address + extent.bytes);
        }
        CHECK_EQUAL(stats.cached, bytes[State::cached]);
        CHECK_EQUAL(stats.waiting, bytes[State::stream_cached]);
        CHECK_EQUAL(stats.idle, idle + bytes[State::idle]);
        CHECK_EQUAL(stats.fragmentation_bytes, of_no_use);
        CHECK(bytes[State::cached] > 0 && bytes[State::stream_cached] > 0 &&
              bytes[State::idle] > 0);
    })));
}
