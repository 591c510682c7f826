// Sets of ranges, beside a list of booleans.
#include "base/range_set.h"

#include <random>
#include <utility>
#include <vector>

#include "testing.h"

using vramkit::RangeSet;

TEST(neighbours_join_and_the_best_fit_is_taken) {
    RangeSet list;
    list.insert(0x1000, 0x100);
    list.insert(0x1200, 0x100);
    CHECK_EQUAL(list.ranges().size(), std::size_t{2});
    list.insert(0x1100, 0x100);
    CHECK_EQUAL(list.ranges().size(), std::size_t{1});
    CHECK_EQUAL(list.largest(), std::uint64_t{0x300});
    CHECK(list.take_at(0x1100, 0x100));
    CHECK_EQUAL(list.ranges().size(), std::size_t{2});
    CHECK_EQUAL(list.take_best(0x200), std::uint64_t{0});
    list.insert(0x2000, 0x80);
    CHECK_EQUAL(list.take_best(0x80), std::uint64_t{0x2000});
    CHECK_EQUAL(list.take_best(0x40), std::uint64_t{0x1000});
    CHECK_EQUAL(list.bytes(), std::uint64_t{0x1c0});
}

TEST(only_what_is_there_as_a_whole_is_taken) {
    RangeSet list;
    list.insert(0x1000, 0x100);
    for (const std::uint64_t begin : {0xf80, 0x1080, 0x1100, 0x2000}) {
        CHECK(!list.take_at(begin, 0x100));
    }
    CHECK_EQUAL(list.bytes(), std::uint64_t{0x100});
    CHECK(list.take_at(0x1000, 0x100));
    CHECK(list.empty());
}

TEST(the_lowest_aligned_bytes_leave_what_lies_before_them) {
    RangeSet list;
    list.insert(0x10c0, 0x100);
    list.insert(0x2040, 0x1000);
    CHECK_EQUAL(list.take_lowest(0x100, 0x100), std::uint64_t{0x2100});
    CHECK_EQUAL(list.take_lowest(0xc0, 0x100), std::uint64_t{0x1100});
    CHECK_EQUAL(list.take_lowest(0x1000, 0x100), std::uint64_t{0});
    CHECK_EQUAL(list.bytes(), std::uint64_t{0x100 + 0x1000 - 0x100 - 0xc0});
}

TEST(sums_hold_whatever_happens) {
    constexpr std::uint64_t kUnits = 64;
    std::vector<bool> free(kUnits, true);
    RangeSet list;
    list.insert(kUnits, kUnits);
    std::mt19937 random(1);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> live;
    for (int step = 0; step < 5000; ++step) {
        if (random() % 2 == 0) {
            const std::uint64_t size = 1 + random() % 12;
            const std::uint64_t address =
                random() % 3 == 0 ? list.take_lowest(size, 4) : list.take_best(size);
            if (address == 0) continue;
            for (std::uint64_t unit = address; unit < address + size; ++unit) {
                CHECK(free[unit - kUnits]);
                free[unit - kUnits] = false;
            }
            live.emplace_back(address, size);
        } else if (!live.empty()) {
            std::swap(live[random() % live.size()], live.back());
            const auto [address, size] = live.back();
            live.pop_back();
            list.insert(address, size);
            for (std::uint64_t unit = address; unit < address + size; ++unit) {
                free[unit - kUnits] = true;
            }
        }
        std::uint64_t sum = 0, ranges = 0;
        for (std::uint64_t unit = 0; unit < kUnits; ++unit) {
            sum += free[unit];
            ranges += free[unit] && (unit == 0 || !free[unit - 1]);
        }
        CHECK_EQUAL(list.bytes(), sum);
        CHECK_EQUAL(list.ranges().size(), ranges);
    }
}
