// Sets of size classes, beside a list of booleans.
#include <random>
#include <vector>

#include "pool/blocks/class_set.h"
#include "testing.h"

using vramkit::pool::ClassIndex;
using vramkit::pool::ClassSet;
using vramkit::pool::kClasses;

TEST(the_next_is_found_from_everywhere) {
    std::mt19937 choose(7);
    ClassSet set;
    std::vector<bool> expected(kClasses);
    for (int round = 0; round < 2000; ++round) {
        const ClassIndex index = choose() % kClasses;
        expected[index] = choose() % 3 == 0;
        expected[index] ? set.set(index) : set.clear(index);
        ClassIndex next = kClasses;
        for (ClassIndex from = kClasses; from-- > 0;) {
            if (expected[from]) next = from;
            REQUIRE(set.next(from) == next);
        }
        REQUIRE(set.next(kClasses) == kClasses);
    }
}

TEST(each_is_visited_from_the_last_down_and_may_be_cleared) {
    std::mt19937 choose(11);
    for (int round = 0; round < 200; ++round) {
        const ClassIndex least = choose() % kClasses;
        ClassSet set;
        std::vector<ClassIndex> expected, visited;
        for (ClassIndex index = kClasses; index-- > 0;) {
            if (choose() % 3 != 0) continue;
            set.set(index);
            if (index >= least) expected.push_back(index);
        }
        set.each_down(least, [&](ClassIndex index) {
            visited.push_back(index);
            set.clear(index);
        });
        REQUIRE(visited == expected);
        REQUIRE(set.next(least) == kClasses);
    }
}
