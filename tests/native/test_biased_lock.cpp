// Owner words: its thread and any number of guests, never two of them at once.
#include "pool/threads/biased_lock.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "testing.h"

using vramkit::pool::BiasedLock;

namespace {

// Written by whoever has the word, without any order of its own: the thread sanitizer sees the
// rest.
struct Guarded {
    explicit Guarded(bool barrier) : word(barrier) {}

    void change() {
        ++first;
        if (first != second + 1) ++torn;
        ++second;
    }

    BiasedLock word;
    std::uint64_t first = 0, second = 0, torn = 0;
};

std::vector<bool> ways() {
    if (BiasedLock::kernel_has_barrier()) return {true, false};
    return {false};
}

}  // namespace

TEST(owner_and_guests_are_never_in_at_once) {
    constexpr std::uint64_t kGuests = 3, kVisits = 2000;
    for (const bool barrier : ways()) {
        Guarded guarded(barrier);
        std::atomic<std::uint64_t> guests{kGuests};
        std::uint64_t entries = 0;
        std::thread owner([&] {
            while (guests.load() > 0 || entries < kVisits) {
                guarded.word.enter();
                guarded.change();
                guarded.word.leave();
                ++entries;
            }
        });
        std::vector<std::thread> threads;
        for (std::uint64_t guest = 0; guest < kGuests; ++guest) {
            threads.emplace_back([&] {
                for (std::uint64_t i = 0; i < kVisits; ++i) {
                    guarded.word.visit();
                    guarded.change();
                    guarded.word.let_go();
                }
                --guests;
            });
        }
        for (std::thread& each : threads) each.join();
        owner.join();
        CHECK_EQUAL(guarded.torn, std::uint64_t{0});
        CHECK_EQUAL(guarded.second, entries + kGuests * kVisits);
    }
}

TEST(one_barrier_serves_for_many_words) {
    constexpr std::size_t kOwners = 3;
    for (const bool barrier : ways()) {
        std::vector<std::unique_ptr<Guarded>> all;
        for (std::size_t i = 0; i < kOwners; ++i) all.push_back(std::make_unique<Guarded>(barrier));
        std::atomic<bool> stop{false};
        std::vector<std::thread> owners;
        for (const auto& mine : all) {
            owners.emplace_back([&stop, &guarded = *mine] {
                while (!stop.load()) {
                    guarded.word.enter();
                    guarded.change();
                    guarded.word.leave();
                }
            });
        }
        for (int round = 0; round < 500; ++round) {
            for (const auto& each : all) each->word.knock();
            BiasedLock::put_barrier();
            for (const auto& each : all) each->word.wait_for_owner();
            // All stand still: the sum is that of one moment.
            std::uint64_t sum = 0, again = 0;
            for (const auto& each : all) sum += each->second;
            for (const auto& each : all) again += each->first;
            CHECK_EQUAL(sum, again);
            for (const auto& each : all) each->word.let_go();
        }
        stop = true;
        for (std::thread& each : owners) each.join();
        for (const auto& each : all) CHECK_EQUAL(each->torn, std::uint64_t{0});
    }
}

TEST(the_owner_may_be_its_own_guest) {
    BiasedLock word;
    for (int i = 0; i < 3; ++i) {
        word.enter();
        word.leave();
        word.visit();
        word.let_go();
    }
}
