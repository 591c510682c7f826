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
