// The gate of launches: nobody is inside once it is closed, and an open one costs no lock.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "counted_locks.h"
#include "share/launch_gate.h"
#include "testing.h"

using namespace std::chrono_literals;
using vramkit::share::LaunchGate;
using vramkit::share::Passenger;

namespace {

constexpr int kThreads = 6;
constexpr auto kPatience = 10s;

LaunchGate& gate() {
    static LaunchGate only;  // as in a program: there is one
    return only;
}

// As Passage does, with work in the place of the driver's call.
template <class Work>
void pass(Work work) {
    gate();  // before any thread comes
    Passenger& me = LaunchGate::mine();
    me.inside.store(me.inside.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    while (LaunchGate::attention() != 0) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (!LaunchGate::is_closed()) break;
        me.inside.store(0, std::memory_order_release);
        gate().wait_until_open();
        me.inside.store(1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    work();
    me.inside.store(me.inside.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

}  // namespace

TEST(no_call_is_inside_a_closed_gate) {
    // Not atomic, and written by calls and by who has closed the gate: a sanitizer sees a call that
    // is inside then, and so do the sums.
    static std::uint64_t written[kThreads] = {};
    std::atomic<bool> ends{false};
    std::vector<std::thread> threads;
    for (std::uint64_t& own : written) {
        threads.emplace_back([&ends, &own] {
            while (!ends.load(std::memory_order_relaxed)) pass([&own] { ++own; });
        });
    }
    const auto sum = [] {
        std::uint64_t all = 0;
        for (const std::uint64_t& each : written) all += each;
        return all;
    };
    for (int turn = 0; turn < testing::rounds(300, 20000); ++turn) {
        CHECK(gate().close(kPatience));
        const std::uint64_t before = sum();
        for (std::uint64_t& each : written) ++each;
        std::this_thread::yield();
        CHECK_EQUAL(sum(), before + kThreads);
        gate().open();
    }
    ends.store(true);
    for (std::thread& each : threads) each.join();
}

TEST(threads_that_come_and_go_pass_one_after_the_other) {
    static std::uint64_t inside = 0;  // not atomic, as above
    std::atomic<bool> ends{false};
    std::atomic<int> passed{0};
    std::thread closes([&] {
        while (!ends.load()) {
            CHECK(gate().close(kPatience));
            ++inside;
            const int before = passed.load();
            gate().open();
            // Closed again at once, it could keep those who wait from seeing it open, for ever.
            while (!ends.load() && passed.load() == before) std::this_thread::yield();
        }
    });
    for (int turn = 0; turn < testing::rounds(100, 3000); ++turn) {
        std::vector<std::thread> threads;
        for (int index = 0; index < 3; ++index) {
            threads.emplace_back([&] { pass([&] { passed.fetch_add(1); }); });
        }
        for (std::thread& each : threads) each.join();
    }
    ends.store(true);
    closes.join();
    CHECK_EQUAL(passed.load(), 3 * testing::rounds(100, 3000));
}

TEST(a_call_that_does_not_end_leaves_the_gate_open) {
    std::atomic<bool> is_inside{false}, ends{false};
    std::thread stays([&] {
        pass([&] {
            is_inside.store(true);
            while (!ends.load()) std::this_thread::yield();
        });
    });
    while (!is_inside.load()) std::this_thread::yield();
    CHECK(!gate().close(1ms));
    CHECK(!LaunchGate::is_closed());
    pass([] {});  // does not wait
    ends.store(true);
    stays.join();
    CHECK(gate().close(kPatience));
    gate().open();
}

TEST(memory_that_came_since_is_not_forgotten) {
    gate();
    LaunchGate::note_unbacked();
    const std::uint32_t count = LaunchGate::unbacked();
    LaunchGate::note_unbacked();
    LaunchGate::backed(count);
    CHECK(LaunchGate::unbacked() != 0);
    LaunchGate::backed(LaunchGate::unbacked());
    CHECK_EQUAL(LaunchGate::unbacked(), 0U);
}

// Nothing is counted under sanitizers: counted_locks.h.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(an_open_gate_is_passed_without_a_lock) {
    pass([] {});
    locks = 0;
    for (int call = 0; call < 1000; ++call) pass([] {});
    CHECK_EQUAL(locks, 0);
    gate().open();
    CHECK_EQUAL(locks, 1);  // they are counted
}

// A thread's store of being inside may wait in its processor's buffer while the thread has seen the
// gate open; the barrier brings it out. Here that happens in the call, and at no other time.
#include <linux/membarrier.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

std::atomic<Passenger*> buffered{nullptr};
std::atomic<int> barriers{0};
std::atomic<bool> was_closed{false};

}  // namespace

extern "C" [[gnu::visibility("default")]] long syscall(long number, ...) noexcept {
    static auto* const next = decltype(&syscall)(dlsym(RTLD_NEXT, "syscall"));
    va_list given;
    va_start(given, number);
    long words[6];
    for (long& each : words) each = va_arg(given, long);
    va_end(given);
    if (number == SYS_membarrier && words[0] == MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        ++barriers;
        was_closed.store(LaunchGate::is_closed());
        if (Passenger* const inside = buffered.load()) inside->inside.store(1);
    }
    return next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

TEST(a_store_that_only_the_barrier_brings_out_is_seen) {
    gate();
    Passenger& me = LaunchGate::mine();
    buffered.store(&me);
    barriers.store(0);
    CHECK(!gate().close(1ms));
    CHECK_EQUAL(barriers.load(), 1);
    CHECK(was_closed.load());
    buffered.store(nullptr);
    me.inside.store(0);
    CHECK(gate().close(kPatience));
    CHECK_EQUAL(barriers.load(), 2);
    gate().open();
}
#endif
