// Host memory runs out: the nth allocation of a call fails, for every n, and the pool loses
// nothing.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "pool_bench.h"

using namespace bench;

namespace {

constinit thread_local long left = -1;  // allocations until one fails; negative: none does
constinit thread_local bool failed = false;

// The simulated GPU's own do not fail: a driver has host memory.
bool is_of_driver(void* caller) {
    const long before = std::exchange(left, -1);
    Dl_info info{};
    const bool found = dladdr(caller, &info) != 0 && info.dli_fname != nullptr;
    left = before;
    return found && std::strstr(info.dli_fname, "libcuda") != nullptr;
}

void* allocate(std::size_t bytes, std::size_t alignment, void* caller) {
    if (left >= 0 && !is_of_driver(caller) && left-- == 0) {
        failed = true;
        throw std::bad_alloc();
    }
    void* const memory =
        std::aligned_alloc(alignment, round_up(std::max(bytes, alignment), alignment));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

// Runs it with its nth allocation failing. False: it makes fewer.
template <class Body>
bool without_host_memory(long nth, Body body) {
    failed = false;
    left = nth;
    try {
        body();
    } catch (const std::bad_alloc&) {
    }
    left = -1;
    return failed;
}

}  // namespace

void* operator new(std::size_t bytes) {
    return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__, __builtin_return_address(0));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

TEST(a_lent_block_whose_free_fails_is_lent_still) {
    bool failing = true;
    for (long nth = 0; failing; ++nth) {
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef owner = card.stream(true), other = card.stream(true);
        const std::uint64_t address = must_malloc(*pool, 4 * kMiB, owner);
        card.order(owner, other);
        card.occupy(other);
        card.use(address, 4 * kMiB, other);
        Failure why;
        CHECK(pool->also_used_on(address, other, why));
        std::thread([&] {  // which has no cache yet
            CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
            bool freed = false;
            failing = without_host_memory(nth, [&] { freed = pool->free(address, {}, {}, why); });
            if (!freed) must_free(*pool, address);
            CHECK(must_malloc(*pool, 4 * kMiB, owner) != address);
        })
            .join();
        CHECK_EQUAL(pool->check_invariants(), std::string());
        CHECK_EQUAL(pool->stats().waiting, 4 * kMiB);
        check_order(card);
    }
}

TEST(held_blocks_are_released_once) {
    bool failing = true;
    for (long nth = 0; failing; ++nth) {
        const Card card;
        const auto pool = open_pool(card);
        const StreamRef owner = card.stream(true), other = card.stream(true);
        // Of several classes: each needs room on the stream cache.
        const std::vector<std::uint64_t> sizes{2 * kMiB, 4 * kMiB, 6 * kMiB, 8 * kMiB};
        std::vector<std::uint64_t> blocks;
        Failure why;
        for (const std::uint64_t bytes : sizes) {
            blocks.push_back(must_malloc(*pool, bytes, owner));
            CHECK(pool->also_used_on(blocks.back(), other, why));
        }
        card.occupy(other);
        for (const std::uint64_t block : blocks) must_free(*pool, block);
        CHECK_EQUAL(card.call.cuStreamSynchronize(other.handle), CUDA_SUCCESS);
        failing = without_host_memory(nth, [&] { pool->step(); });
        CHECK_EQUAL(pool->check_invariants(), std::string());
        pool->step();
        CHECK_EQUAL(pool->check_invariants(), std::string());
        std::set<std::uint64_t> taken;
        for (const std::uint64_t bytes : sizes) {
            CHECK(taken.insert(must_malloc(*pool, bytes, owner)).second);
        }
        CHECK(taken == std::set<std::uint64_t>(blocks.begin(), blocks.end()));
        check_order(card);
    }
}

TEST(a_block_straight_from_the_driver_whose_free_fails_is_in_use_still) {
    bool failing = true;
    for (long nth = 0; failing; ++nth) {
        const Card card;
        Config config;
        config.large = vramkit::pool::Large::direct;
        const auto pool = open_pool(card, config);
        const std::uint64_t address = must_malloc(*pool, 4 * kMiB, card.stream(true));
        // On a thread without a cache: one has to be made for it.
        std::thread([&] {
            CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
            Failure why;
            bool freed = false;
            failing = without_host_memory(nth, [&] { freed = pool->free(address, {}, {}, why); });
            if (!freed) must_free(*pool, address);
        }).join();
        CHECK_EQUAL(pool->stats().current_usage, std::uint64_t{0});
        Failure why;
        CHECK(pool->close(why));
    }
}

// Later failures leave the lists of mapped memory inconsistent.
TEST(a_move_that_fails_before_the_driver_is_called_leaves_the_stream_its_memory) {
    int failures = 0;
    for (long nth = 0;; ++nth) {
        const Card card;
        Config config;
        config.limit = 32 * kMiB;
        const auto pool = open_pool(card, config);
        const StreamRef stream = card.stream(true);
        std::vector<std::uint64_t> blocks(8);  // on a piece each
        for (std::uint64_t& block : blocks) block = must_malloc(*pool, 4 * kMiB, stream);
        for (std::size_t i = 0; i < blocks.size(); i += 2) must_free(*pool, blocks[i]);
        gpu::sim().reset_call_counts();
        Failure why;
        std::uint64_t block = 0;
        const bool failing =
            without_host_memory(nth, [&] { block = pool->malloc(12 * kMiB, stream, true, why); });
        if (block != 0 && failing) continue;  // it could do without
        if (block != 0 || card.calls("cuMemMap") > 0) break;
        ++failures;
        CHECK_EQUAL(pool->stats().waiting, 16 * kMiB);
        CHECK_EQUAL(pool->stats().reserved, 32 * kMiB);
        // Each piece serves again.
        for (std::size_t i = 0; i < blocks.size(); i += 2) must_malloc(*pool, 4 * kMiB, stream);
        CHECK_EQUAL(pool->stats().waiting, std::uint64_t{0});
    }
    CHECK(failures > 3);
}

TEST(a_number_that_finds_no_host_memory_for_its_fence_stays_open) {
    const Card card;
    const StreamRef stream = card.stream(true);
    {
        EventPool events(card.call);
        Fences fences(events);
        card.occupy(stream);  // so that none passes
        int open = 0;
        for (int i = 0; i < 200; ++i) {
            const Fences::Number number = fences.open();
            bool recorded = false;
            without_host_memory(0, [&] { recorded = fences.record(stream.handle); });
            CHECK_EQUAL(fences.is_recorded(number), recorded);
            open += !recorded;
            if (!recorded) CHECK(fences.record(stream.handle) && fences.is_recorded(number));
        }
        CHECK(open > 0);
    }
    check_nothing_left();
}

TEST(a_pool_that_cannot_be_made_leaves_nothing) {
    bool failing = true;
    for (long nth = 0; failing; ++nth) {
        const Card card;
        Config config;
        config.background = false;
        failing = without_host_memory(nth, [&] {
            Failure why;
            Pool::open(simulated(), 0, card.context, config, why);
        });
        check_nothing_left();
    }
}
