// Free ranges: exact sizes and best fit, cuts and joins, and the fences that go with them.
#include "free_ranges_bench.h"

using namespace free_ranges;

namespace {

using Parts = std::vector<Part>;

// What was taken, as (begin, spans, fence).
Part taken(const Slab* range) {
    REQUIRE(range != nullptr);
    CHECK(range->free_in == nullptr);
    return part_of(*range);
}

}  // namespace

TEST(a_range_of_the_exact_size_is_taken_without_joining_any) {
    Bench bench;
    bench.add(bench.free, 0, 4, 1);
    bench.add(bench.free, 4, 4, 2);
    bench.add(bench.free, 8, 8, 3);
    bench.add(bench.free, 20, 300, 4);  // in a bin of several sizes
    bench.add(bench.free, 400, 301, 5);
    CHECK(bench.free.take_exact(5 * kSpan) == nullptr);
    CHECK(bench.free.take_exact(302 * kSpan) == nullptr);
    CHECK_EQUAL(bench.free.count(), std::size_t{5});
    CHECK(taken(bench.free.take_exact(4 * kSpan)) == (Part{4, 4, 2}));  // the newest
    CHECK(taken(bench.free.take_exact(300 * kSpan)) == (Part{20, 300, 4}));
    CHECK(taken(bench.free.take_exact(301 * kSpan)) == (Part{400, 301, 5}));
    CHECK(Bench::parts_of(bench.free) == (Parts{{0, 4, 1}, {8, 8, 3}}));
    CHECK_EQUAL(bench.free.bytes(), 12 * kSpan);
}

TEST(the_best_fit_is_cut_and_the_rest_keeps_its_fence) {
    Bench bench;
    bench.add(bench.free, 0, 9, 1);
    bench.add(bench.free, 10, 7, 2);
    bench.add(bench.free, 20, 5, 3);
    CHECK(taken(bench.free.take_best(6 * kSpan)) == (Part{10, 6, 2}));
    CHECK(Bench::parts_of(bench.free) == (Parts{{0, 9, 1}, {16, 1, 2}, {20, 5, 3}}));
    CHECK(bench.free.take_best(10 * kSpan) == nullptr);
    CHECK(taken(bench.free.take_best(kSpan)) == (Part{16, 1, 2}));
    CHECK(taken(bench.free.take_best(kSpan)) == (Part{20, 1, 3}));
    CHECK_EQUAL(bench.free.bytes(), 13 * kSpan);
}

TEST(the_best_fit_above_16_mib_is_the_smallest_and_not_the_first_of_its_bin) {
    Bench bench;
    // 16 bins to a doubling: 512 to 543 spans share one.
    std::uint64_t begin = 0;
    for (const std::uint64_t spans : {540, 520, 530, 512, 543}) {
        bench.add(bench.free, begin += 1000, spans, spans);
    }
    CHECK_EQUAL(taken(bench.free.take_best(515 * kSpan)).fence, Fences::Number{520});
    CHECK_EQUAL(taken(bench.free.take_best(531 * kSpan)).fence, Fences::Number{540});
    CHECK_EQUAL(taken(bench.free.take_best(541 * kSpan)).fence, Fences::Number{543});
    // None of its own bin is large enough, one of the next is.
    bench.add(bench.free, 14'000, 545, 545);
    CHECK_EQUAL(taken(bench.free.take_best(541 * kSpan)).fence, Fences::Number{545});
}

TEST(the_lowest_range_that_is_large_enough_is_cut_after_neighbours_were_joined) {
    Bench bench;
    bench.add(bench.free, 100, 5, 1);
    bench.add(bench.free, 10, 2, 2);
    bench.add(bench.free, 12, 3, 3);
    bench.add(bench.free, 200, 600, 4);
    bench.add(bench.free, 0, 3, 5);
    CHECK(taken(bench.free.take_low(4 * kSpan)) == (Part{10, 4, 3}));
    CHECK(taken(bench.free.take_low(4 * kSpan)) == (Part{100, 4, 1}));
    CHECK(taken(bench.free.take_low(598 * kSpan)) == (Part{200, 598, 4}));
    CHECK(taken(bench.free.take_low(kSpan)) == (Part{0, 1, 5}));
    CHECK(bench.free.take_low(3 * kSpan) == nullptr);
}

TEST(neighbours_are_joined_behind_the_newest_fence) {
    for (const bool newest_in_front : {true, false}) {
        Bench bench;
        bench.add(bench.free, 0, 4, newest_in_front ? 9 : 1);
        bench.add(bench.free, 4, 4, 2);
        bench.add(bench.free, 8, 4, newest_in_front ? 1 : 9);
        bench.add(bench.free, 13, 4, 3);  // a span between
        CHECK_EQUAL(bench.free.count(), std::size_t{4});
        CHECK(taken(bench.free.take_best(6 * kSpan)) == (Part{0, 6, 9}));
        CHECK(Bench::parts_of(bench.free) == (Parts{{6, 6, 9}, {13, 4, 3}}));
        CHECK(!bench.free.has_missed_neighbours());
    }
}

TEST(chains_of_fresh_neighbours_become_one_range_in_any_order) {
    std::vector<std::uint64_t> order{0, 1, 2, 3, 4};
    do {
        Bench bench;
        for (const std::uint64_t each : order) bench.add(bench.free, 3 * each, 3, 1 + each);
        bench.free.join();
        CHECK(Bench::parts_of(bench.free) == (Parts{{0, 15, 5}}));
        CHECK(!bench.free.has_missed_neighbours());
    } while (std::ranges::next_permutation(order).found);
}

TEST(a_fresh_range_is_joined_with_those_that_were_joined_before) {
    Bench bench;
    bench.add(bench.free, 0, 3, 1);
    bench.add(bench.free, 6, 3, 2);
    bench.free.join();
    CHECK_EQUAL(bench.free.count(), std::size_t{2});
    bench.add(bench.free, 3, 3);
    CHECK(!bench.free.has_missed_neighbours());  // the next join finds them
    bench.free.join();
    CHECK(Bench::parts_of(bench.free) == (Parts{{0, 9, 2}}));
}

TEST(what_is_behind_the_rest_of_a_fresh_range_is_found_by_the_next_join) {
    Bench bench;
    bench.add(bench.free, 8, 8, 1);
    bench.free.join();
    bench.add(bench.free, 0, 8, 2);
    // Taken from the fresh one without a join: its rest touches the other.
    CHECK(taken(bench.free.take_front(*bench.ranges.behind(kBase, &bench.free), 2 * kSpan)) ==
          (Part{0, 2, 2}));
    CHECK(!bench.free.has_missed_neighbours());
    bench.free.join();
    CHECK(Bench::parts_of(bench.free) == (Parts{{2, 14, 2}}));
}

TEST(neighbours_of_another_set_or_in_use_or_of_a_slab_are_not_joined) {
    Bench bench;
    bench.add(bench.free, 0, 4, 1);
    bench.add(bench.other, 4, 4, 2);
    bench.add(bench.free, 8, 4, 3);
    bench.make(12, 4);  // in use
    bench.add(bench.free, 16, 4, 4);
    bench.free.join();
    bench.other.join();
    CHECK(Bench::parts_of(bench.free) == (Parts{{0, 4, 1}, {8, 4, 3}, {16, 4, 4}}));
    CHECK(Bench::parts_of(bench.other) == (Parts{{4, 4, 2}}));
    Slab* const between = bench.other.take_exact(4 * kSpan);
    bench.free.put(*between, 0);
    bench.free.join();
    CHECK(Bench::parts_of(bench.free) == (Parts{{0, 12, 3}, {16, 4, 4}}));
    CHECK(bench.other.empty());
}

TEST(others_get_only_what_has_passed_and_nothing_is_joined_for_them) {
    Bench bench;
    bench.fences.pass(2);
    bench.add(bench.free, 0, 4, 1);
    bench.add(bench.free, 4, 4, 3);
    bench.add(bench.free, 9, 9, 2);
    CHECK(bench.free.take_passed(10 * kSpan, bench.fences) == nullptr);
    CHECK(taken(bench.free.take_passed(3 * kSpan, bench.fences)) == (Part{0, 3, 1}));
    CHECK(taken(bench.free.take_passed(3 * kSpan, bench.fences)) == (Part{9, 3, 2}));
    CHECK(taken(bench.free.take_passed(6 * kSpan, bench.fences)) == (Part{12, 6, 2}));
    CHECK(bench.free.take_passed(2 * kSpan, bench.fences) == nullptr);
    CHECK(Bench::parts_of(bench.free) == (Parts{{3, 1, 1}, {4, 4, 3}}));
    CHECK(!bench.free.has_missed_neighbours());
}

TEST(collect_hands_over_passed_ranges_the_largest_first) {
    Bench bench;
    bench.fences.pass(5);
    bench.add(bench.free, 0, 4, 5);
    bench.add(bench.free, 10, 8, 4);
    bench.add(bench.free, 20, 20, 6);
    Parts given;
    const auto collect = [&] {
        given.clear();
        bench.free.collect(bench.fences, [&](Slab& range) { given.push_back(taken(&range)); });
    };
    collect();
    CHECK(given == (Parts{{10, 8, 4}, {0, 4, 5}}));
    CHECK(Bench::parts_of(bench.free) == (Parts{{20, 20, 6}}));
    CHECK_EQUAL(bench.free.oldest(), Fences::Number{6});
    collect();
    CHECK(given.empty());
    bench.fences.pass(6);
    collect();
    CHECK(given == (Parts{{20, 20, 6}}));
    CHECK(bench.free.empty() && bench.free.bytes() == 0);
    collect();
    CHECK(given.empty());
}

TEST(bytes_move_to_another_set_the_largest_first_and_the_last_is_cut) {
    Bench bench;
    bench.add(bench.free, 0, 4, 5);
    bench.add(bench.free, 10, 8, 4);
    bench.add(bench.free, 50, 6, 1);
    bench.free.move_to(bench.other, kSpan - 1);
    CHECK(bench.other.empty());
    bench.free.move_to(bench.other, 11 * kSpan + 1);  // the part of a span counts for nothing
    CHECK(Bench::parts_of(bench.other) == (Parts{{10, 8, 4}, {50, 3, 1}}));
    CHECK(Bench::parts_of(bench.free) == (Parts{{0, 4, 5}, {53, 3, 1}}));
    // Back, where they are joined again, behind the newest of their fences.
    bench.other.move_to(bench.free, FreeRanges::kAll);
    CHECK(bench.other.empty());
    bench.free.join();
    CHECK(Bench::parts_of(bench.free) == (Parts{{0, 4, 5}, {10, 8, 4}, {50, 6, 1}}));
}

TEST(the_oldest_and_the_newest_fence_begin_again_with_an_empty_set) {
    Bench bench;
    bench.add(bench.free, 0, 4, 7);
    bench.add(bench.free, 5, 4, 3);
    CHECK_EQUAL(bench.free.oldest(), Fences::Number{3});
    CHECK_EQUAL(bench.free.newest(), Fences::Number{7});
    while (!bench.free.empty()) bench.free.take_exact(4 * kSpan);
    bench.add(bench.free, 20, 4, 5);
    CHECK_EQUAL(bench.free.oldest(), Fences::Number{5});
    CHECK_EQUAL(bench.free.newest(), Fences::Number{5});
}

TEST(the_low_water_mark_is_what_was_never_taken) {
    Bench bench;
    bench.add(bench.free, 0, 10, 1);
    CHECK_EQUAL(bench.free.reset_low(), std::uint64_t{0});
    Slab* const four = bench.free.take_best(4 * kSpan);
    Slab* const three = bench.free.take_best(3 * kSpan);
    bench.free.put(*three, 2);
    bench.free.put(*four, 3);
    CHECK_EQUAL(bench.free.low(), 3 * kSpan);
    bench.free.join();  // changes nothing
    CHECK_EQUAL(bench.free.reset_low(), 3 * kSpan);
    CHECK_EQUAL(bench.free.low(), 10 * kSpan);
    Ranges::Spare spare;
    bench.free.remove_part(*bench.free.best(10 * kSpan), {kBase, 2 * kSpan}, spare);
    CHECK_EQUAL(bench.free.low(), 8 * kSpan);
    bench.ranges.keep(spare, 0);
}

TEST(a_part_that_is_removed_leaves_both_ends_behind_their_fence) {
    for (const std::uint64_t front : {0, 3}) {
        for (const std::uint64_t back : {0, 2}) {
            Bench bench;
            const std::uint64_t spans = front + 5 + back;
            Slab& range = bench.add(bench.free, 10, spans, 4);
            Ranges::Spare spare;
            bench.ranges.reserve(spare, 2);
            const Extent part{kBase + (10 + front) * kSpan, 5 * kSpan};
            const Slab* const behind = bench.free.remove_part(range, part, spare);
            Parts left;
            if (front > 0) left.push_back({10, front, 4});
            if (back > 0) left.push_back({15 + front, back, 4});
            CHECK(Bench::parts_of(bench.free) == left);
            CHECK((behind == nullptr) == (back == 0));
            if (behind != nullptr) CHECK(part_of(*behind) == left.back());
            // No range is known at the part, and another one can be made there.
            CHECK(bench.ranges.behind(part.address, &bench.free) == nullptr);
            CHECK(bench.ranges.before(part.end(), &bench.free) == nullptr);
            bench.free.put(bench.make(10 + front, 5), 6);
            bench.free.join();
            CHECK(Bench::parts_of(bench.free) == (Parts{{10, spans, 6}}));
            bench.ranges.keep(spare, 0);
        }
    }
}

TEST(ranges_keep_the_state_and_the_class_of_their_blocks) {
    Bench bench;
    Slab& range = bench.make(0, 40);
    range.record(0).set(State::stream_cached, 7, 0);
    bench.free.put(range, 1);
    Slab* const front = bench.free.take_best(8 * kSpan);
    CHECK_EQUAL(front->index, range_class_of(8 * kSpan));
    CHECK_EQUAL(front->block_bytes, 8 * kSpan);
    const Slab* const rest = bench.free.best(kSpan);
    CHECK(rest->record(0).state() == State::stream_cached);
    CHECK_EQUAL(rest->record(0).stream(), std::uint32_t{7});
    CHECK_EQUAL(rest->index, range_class_of(32 * kSpan));
    CHECK(rest->large && rest->count == 1);
    // Both ends are entered.
    CHECK(bench.pages->slab_of(kBase) == front);
    CHECK(bench.pages->slab_of(kBase + 7 * kSpan) == front);
    CHECK(bench.pages->slab_of(kBase + 8 * kSpan) == rest);
    bench.free.put(*front, 2);
    bench.free.join();
    // What the map still says of the inside finds no neighbours there.
    CHECK(bench.ranges.before(kBase + 8 * kSpan, &bench.free) == nullptr);
    CHECK(bench.ranges.behind(kBase + 8 * kSpan, &bench.free) == nullptr);
    CHECK(bench.ranges.behind(kBase, &bench.other) == nullptr);
    CHECK(bench.ranges.behind(kBase, &bench.free) == front);
    CHECK(bench.ranges.before(kBase + 40 * kSpan, &bench.free) == front);
    CHECK_EQUAL(bench.ranges.not_idle(), std::size_t{1});
}

// The map keeps entries inside a range from before it was joined. Its memory is unmapped, the
// records serve other ranges, and some of the addresses are mapped again.
TEST(what_the_map_says_of_addresses_that_nothing_is_mapped_at_joins_nothing) {
    for (const bool front_again : {true, false}) {
        Bench bench;
        Slab& range = bench.add(bench.free, 0, 4, 1);
        const Slab& behind = bench.add(bench.free, 4, 6, 2);
        bench.free.join();
        Ranges::Spare spare;
        bench.free.remove_part(range, {kBase, 10 * kSpan}, spare);
        // Both records are in use again.
        bench.add(bench.free, 20, 8, 3);
        CHECK(taken(bench.free.take_best(3 * kSpan)) == (Part{20, 3, 3}));
        CHECK(bench.ranges.behind(kBase + 23 * kSpan, &bench.free) == &behind);
        const Part again = front_again ? Part{0, 4, 4} : Part{4, 6, 4};
        bench.add(bench.free, 30, 2, 5);
        bench.add(bench.free, again.begin, again.spans, 4);
        bench.free.join();
        CHECK(Bench::parts_of(bench.free) == (Parts{again, {23, 5, 3}, {30, 2, 5}}));
    }
}
