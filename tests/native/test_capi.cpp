// The C interface on the simulated GPU: threads, one instance for all, faults on the way, forks.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "driver/default_driver.h"
#include "gpu.h"
#include "include/vramkit.h"
#include "pool_bench.h"
#include "resources/direct.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A fresh card, which the library finds by the environment; pools of earlier tests are closed.
void start() {
    ::setenv("VRAMKIT_DRIVER", "sim", 1);
    gpu::reset("checker=on,data=off,capacity=1GiB");
    gpu::use_device();
}

vramkit_stats stats_of(vramkit_pool* pool) {
    vramkit_stats stats{};
    stats.size = sizeof stats;
    CHECK_EQUAL(vramkit_pool_stats(pool, &stats), VRAMKIT_OK);
    return stats;
}

void run_threads(int count, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int each = 0; each < count; ++each) threads.emplace_back(body, each);
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

// Every thread frees what others allocated, on the stream of the allocation.
TEST(threads_hand_blocks_to_each_other) {
    start();
    constexpr int kThreads = 4;
    constexpr int kSteps = 400;
    vramkit_pool* const pool = vramkit_pool_create(nullptr);
    REQUIRE(pool != nullptr);
    std::mutex lock;
    std::vector<void*> handed;
    std::array<CUstream, kThreads> streams{};
    for (CUstream& stream : streams) stream = gpu::make_stream();
    run_threads(kThreads, [&](int number) {
        const CUstream stream = streams[static_cast<std::size_t>(number)];
        std::mt19937 random(static_cast<unsigned>(number));
        gpu::use_device();
        for (int step = 0; step < kSteps; ++step) {
            const std::size_t bytes = random() % (random() % 8 == 0 ? 4 * kMiB : 64 * 1024) + 1;
            void* block = vramkit_malloc(pool, bytes, stream);
            CHECK(block != nullptr);
            CHECK_EQUAL(
                gpu::cu().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(block), 1, bytes, stream),
                CUDA_SUCCESS);
            {
                const std::lock_guard guard(lock);
                handed.push_back(block);
                std::swap(handed[random() % handed.size()], handed.back());
                block = nullptr;
                if (handed.size() > 8) {
                    block = handed.back();
                    handed.pop_back();
                }
            }
            CHECK_EQUAL(vramkit_free(pool, block), VRAMKIT_OK);
        }
    });
    for (void* const block : handed) CHECK_EQUAL(vramkit_free(pool, block), VRAMKIT_OK);
    const vramkit_stats stats = stats_of(pool);
    CHECK_EQUAL(stats.allocation_count, std::uint64_t{kThreads * kSteps});
    CHECK_EQUAL(stats.free_count, std::uint64_t{kThreads * kSteps});
    CHECK_EQUAL(stats.current_usage, std::uint64_t{0});
    for (const CUstream stream : streams) {
        CHECK_EQUAL(vramkit_stream_closing(stream), VRAMKIT_OK);
        CHECK_EQUAL(gpu::cu().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    }
    CHECK_EQUAL(vramkit_pool_destroy(pool), VRAMKIT_OK);
    CHECK_EQUAL(gpu::text_of(gpu::sim().reports), "[]");
}

TEST(threads_that_come_at_once_get_one_instance) {
    start();
    constexpr int kThreads = 8;
    for (int round = 0; round < 3; ++round) {
        std::barrier together(kThreads);
        std::array<vramkit_pool*, kThreads> found{};
        run_threads(kThreads, [&](int number) {
            together.arrive_and_wait();
            found[static_cast<std::size_t>(number)] = vramkit_pool_instance(0);
        });
        REQUIRE(found[0] != nullptr);
        CHECK_EQUAL(std::set<vramkit_pool*>(found.begin(), found.end()).size(), std::size_t{1});
        CHECK_EQUAL(vramkit_pool_close(found[0]), VRAMKIT_OK);  // the next round makes another
    }
}

TEST(each_thread_has_its_own_last_error) {
    start();
    CHECK_EQUAL(vramkit_malloc(nullptr, 1, nullptr), nullptr);
    CHECK_EQUAL(vramkit_last_status(), VRAMKIT_BAD_VALUE);
    run_threads(1, [](int) {
        CHECK_EQUAL(vramkit_last_status(), VRAMKIT_OK);
        CHECK_EQUAL(std::string(vramkit_last_error()), "");
    });
    CHECK(!std::string(vramkit_last_error()).empty());
}

// The pool of one framework's choice changes while others allocate and free.
TEST(torch_can_be_given_another_pool_at_any_time) {
    start();
    std::array<vramkit_pool*, 2> pools{vramkit_pool_create(nullptr), vramkit_pool_instance(0)};
    REQUIRE(pools[0] != nullptr && pools[1] != nullptr);
    const CUstream stream = gpu::make_stream();
    std::atomic<int> working{3};
    run_threads(4, [&](int number) {
        if (number == 0) {
            for (std::size_t turn = 0; working > 0; ++turn) {
                CHECK_EQUAL(vramkit_torch_use(0, pools[turn % 2]), VRAMKIT_OK);
            }
            return;
        }
        for (int step = 0; step < 300; ++step) {
            vramkit_torch_free(vramkit_torch_malloc(1000, 0, stream), 1000, 0, stream);
        }
        --working;
    });
    CHECK_EQUAL(vramkit_torch_use(0, nullptr), VRAMKIT_OK);
    CHECK_EQUAL(stats_of(pools[0]).allocation_count + stats_of(pools[1]).allocation_count,
                std::uint64_t{900});
    CHECK_EQUAL(stats_of(pools[0]).current_usage + stats_of(pools[1]).current_usage,
                std::uint64_t{0});
    CHECK_EQUAL(vramkit_stream_closing(stream), VRAMKIT_OK);
    CHECK_EQUAL(gpu::cu().cuStreamDestroy_v2(stream), CUDA_SUCCESS);
    CHECK_EQUAL(vramkit_pool_close(pools[1]), VRAMKIT_OK);
    CHECK_EQUAL(vramkit_pool_destroy(pools[0]), VRAMKIT_OK);
}

// Whichever driver call fails: the function goes well without it or says so, and leaves nothing.
TEST(a_failing_driver_call_is_told_and_leaves_nothing) {
    start();
    const std::string before = gpu::text_of(gpu::sim().live_objects);
    constexpr std::uint64_t kCalls = 40;  // more than are made
    int told = 0;
    for (std::uint64_t nth = 1; nth <= kCalls; ++nth) {
        CHECK_EQUAL(gpu::sim().inject("*", nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        vramkit_pool* const pool = vramkit_pool_create(nullptr);
        void* const block = pool != nullptr ? vramkit_malloc(pool, kMiB, nullptr) : nullptr;
        gpu::sim().clear_faults();
        if (block == nullptr) {
            ++told;
            CHECK_EQUAL(vramkit_last_status(), VRAMKIT_DRIVER);
            CHECK(std::string(vramkit_last_error()).find("CUDA_ERROR_UNKNOWN") !=
                  std::string::npos);
        }
        CHECK(nth < kCalls || block != nullptr);
        CHECK_EQUAL(vramkit_free(pool, block), VRAMKIT_OK);
        CHECK_EQUAL(vramkit_pool_destroy(pool), VRAMKIT_OK);
        CHECK_EQUAL(gpu::text_of(gpu::sim().live_objects), before);
    }
    CHECK(told >= 4);
}

TEST(a_forked_child_is_refused) {
    start();
    vramkit_pool* const pool = vramkit_pool_instance(0);
    vramkit_pool* const own = vramkit_pool_create(nullptr);
    void* const block = vramkit_malloc(pool, 1000, nullptr);
    REQUIRE(block != nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        vramkit_stats stats{};
        stats.size = sizeof stats;
        const auto refused = [](const void* result) {
            return result == nullptr && vramkit_last_status() == VRAMKIT_FORKED;
        };
        const bool all = refused(vramkit_malloc(pool, 1000, nullptr)) &&
                         refused(vramkit_pool_create(nullptr)) &&
                         vramkit_free(pool, block) == VRAMKIT_FORKED &&
                         vramkit_free_on(pool, block, nullptr) == VRAMKIT_FORKED &&
                         vramkit_pool_stats(pool, &stats) == VRAMKIT_FORKED &&
                         vramkit_trim(pool, nullptr) == VRAMKIT_FORKED &&
                         vramkit_pool_close(pool) == VRAMKIT_FORKED &&
                         vramkit_pool_destroy(own) == VRAMKIT_FORKED;
        ::_exit(all ? 0 : 1);
    }
    int status = 0;
    CHECK_EQUAL(::waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(vramkit_free(pool, block), VRAMKIT_OK);
    CHECK_EQUAL(vramkit_pool_destroy(own), VRAMKIT_OK);
    CHECK_EQUAL(vramkit_pool_close(pool), VRAMKIT_OK);
}

// Python's resources use the same registry: what is told through C reaches them too.
TEST(a_closing_stream_that_is_announced_through_c_reaches_resources) {
    start();
    CUcontext context = nullptr;
    CHECK_EQUAL(gpu::cu().cuCtxGetCurrent(&context), CUDA_SUCCESS);
    const auto driver = std::get<std::shared_ptr<vramkit::Driver>>(vramkit::default_driver());
    vramkit::resources::Direct resource(driver, context);
    vramkit::StreamRef stream{gpu::make_stream()};
    CHECK_EQUAL(vramkit::identify(gpu::cu(), stream), CUDA_SUCCESS);
    vramkit::Failure why;
    const std::uint64_t block = resource.malloc(4096, stream, why);
    REQUIRE(block != 0);
    gpu::sim().reset_call_counts();
    CHECK_EQUAL(vramkit_stream_closing(stream.handle), VRAMKIT_OK);
    CHECK_EQUAL(bench::figure(gpu::text_of(gpu::sim().call_counts), "cuEventRecord"),
                std::uint64_t{1});
    CHECK_EQUAL(gpu::cu().cuStreamDestroy_v2(stream.handle), CUDA_SUCCESS);
    // Freed behind the last work of a stream that is gone.
    CHECK(resource.free(block, {}, {}, why));
    CHECK(resource.close(why));
}
