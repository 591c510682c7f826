// Extents on the simulated GPU: joining and cutting without calls, moving, giving back, faults.
#include "extents_bench.h"

namespace {

void reset_calls() { reinterpret_cast<void (*)()>(gpu::driver().symbol("simResetCallCounts"))(); }
std::string calls() { return gpu::text_of(sim().call_counts); }

using PageMap = std::vector<std::uint64_t>;
using IdleList = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

}  // namespace

TEST(addresses_take_the_best_fit_and_join_what_is_given) {
    Bench bench;
    Addresses& addresses = *bench.addresses;
    CHECK_EQUAL(addresses.bytes(), 4 * kCard);
    const std::uint64_t base = addresses.base();
    CHECK_EQUAL(addresses.take(10 * kPage), base);
    addresses.give(base + kPage, 3 * kPage);
    addresses.give(base + 6 * kPage, 2 * kPage);
    CHECK_EQUAL(addresses.take(2 * kPage), base + 6 * kPage);
    CHECK(!addresses.take_at(base, kPage));
    CHECK(!addresses.take_at(base + 3 * kPage, 2 * kPage));
    CHECK(addresses.take_at(base + 2 * kPage, kPage));
    CHECK_EQUAL(addresses.take(2 * kPage), base + 10 * kPage);
    CHECK_EQUAL(addresses.take(4 * kCard), std::uint64_t{0});
    addresses.give(base, kPage);
    addresses.give(base + 2 * kPage, kPage);
    addresses.give(base + 4 * kPage, 8 * kPage);
    CHECK_EQUAL(addresses.holes().ranges().size(), std::size_t{1});
    CHECK_EQUAL(addresses.take(4 * kCard), base);
    addresses.give(base, 4 * kCard);
}

TEST(neighbours_join_and_are_cut_without_a_driver_call) {
    Bench bench;
    Extents& extents = *bench.extents;
    const std::uint64_t first = bench.create(2), second = bench.create(3), third = bench.create(1);
    CHECK_EQUAL(second, first + 2 * kPage);
    CHECK_EQUAL(third, second + 3 * kPage);
    reset_calls();
    bench.give(first);
    bench.give(third);
    CHECK_EQUAL(extents.largest_idle(), 2 * kPage);
    bench.give(second);
    bench.well();
    CHECK_EQUAL(extents.largest_idle(), 6 * kPage);
    CHECK_EQUAL(extents.idle_smaller_than(6 * kPage), std::uint64_t{0});
    CHECK_EQUAL(extents.idle_smaller_than(7 * kPage), 6 * kPage);
    // Two pages are one piece, four the run of the last two, and five the run of the first two.
    CHECK_EQUAL(bench.hold(extents.take(2 * kPage, 2 * kPage, 0)), first);
    CHECK_EQUAL(bench.hold(extents.take(4 * kPage, 4 * kPage, 0)), second);
    CHECK(bench.pages_of(second) == (PageMap{3, 1}));
    CHECK_EQUAL(extents.idle(), std::uint64_t{0});
    bench.give(second);
    bench.give(first);
    CHECK_EQUAL(bench.hold(extents.take(5 * kPage, 5 * kPage, 0)), first);
    CHECK(bench.idle() == (IdleList{{third, 1}}));
    bench.give(first);
    CHECK_EQUAL(bench.hold(extents.take(6 * kPage, 6 * kPage, 0)), first);
    CHECK(!extents.take(kPage, kEver, 0));
    bench.give(first);
    bench.well();
    CHECK_EQUAL(calls(), std::string("{}"));
    CHECK_EQUAL(extents.mapped(), 6 * kPage);
}

TEST(take_keeps_to_borders_where_it_can) {
    Bench bench;
    Extents& extents = *bench.extents;
    // Extents of handles {4, 2, 3}, {7}, {2, 3}, {3, 2} with a held page between.
    std::vector<std::vector<std::uint64_t>> made;
    for (const PageMap& pages : {PageMap{4, 2, 3}, PageMap{7}, PageMap{2, 3}, PageMap{3, 2}}) {
        made.emplace_back();
        for (const std::uint64_t each : pages) made.back().push_back(bench.create(each));
        bench.create(1);
    }
    for (const auto& extent : made) {
        for (const std::uint64_t address : extent) bench.give(address);
    }
    CHECK(!extents.take(8 * kPage, 8 * kPage, 0));
    CHECK(!extents.take(kPage, kPage, 0));
    // Of the smallest extents that are long enough, the lowest first.
    CHECK_EQUAL(bench.hold(extents.take(5 * kPage, 6 * kPage, 0)), made[2][0]);
    bench.give(made[2][0]);
    CHECK_EQUAL(bench.hold(extents.take(6 * kPage, 6 * kPage, 0)), made[0][0]);  // 4 + 2, not 7
    bench.give(made[0][0]);
    CHECK_EQUAL(bench.hold(extents.take(2 * kPage, 3 * kPage, 0)), made[2][0]);
    CHECK_EQUAL(bench.hold(extents.take(2 * kPage, 2 * kPage, 0)), made[3][1]);
    CHECK_EQUAL(bench.hold(extents.take(2 * kPage, 2 * kPage, 0)), made[0][1]);
    CHECK(
        bench.idle() ==
        (IdleList{
            {made[0][0], 4}, {made[0][2], 3}, {made[1][0], 7}, {made[2][1], 3}, {made[3][0], 3}}));
    bench.well();
}

TEST(a_handle_is_cut_where_it_may_be_and_moves_and_goes_only_whole) {
    Bench bench;
    Extents& extents = *bench.extents;
    const auto idle = bench.scatter({8, 3});
    const std::uint64_t mapped = extents.mapped();
    reset_calls();
    CHECK(!extents.take(5 * kPage, 5 * kPage, 7 * kPage));
    const std::uint64_t front = bench.hold(extents.take(5 * kPage, 5 * kPage, 8 * kPage));
    CHECK_EQUAL(front, idle[0]);
    CHECK(bench.idle() == (IdleList{{idle[0] + 5 * kPage, 3}, {idle[1], 3}}));
    bench.well();
    // The rest can be taken without another cut: it begins and ends at bounds.
    const std::uint64_t rest = bench.hold(extents.take(3 * kPage, 3 * kPage, 0));
    CHECK_EQUAL(rest, idle[0] + 5 * kPage);
    CHECK_EQUAL(calls(), std::string("{}"));
    bench.give(front);
    Failure why;
    CHECK(!extents.compose(6 * kPage, 0, why));  // there are 8 pages, but only 3 that can move
    CHECK_EQUAL(extents.join(why), std::uint64_t{0});
    CHECK_EQUAL(extents.release(kEver, kAlways), 3 * kPage);
    CHECK(bench.idle() == (IdleList{{idle[0], 5}}));
    bench.well();
    bench.give(rest);
    CHECK(bench.pages_of(bench.hold(extents.take(8 * kPage, 8 * kPage, 0))) == (PageMap{8}));
    bench.give(idle[0]);
    CHECK_EQUAL(extents.release(kEver, kAlways), 8 * kPage);
    CHECK_EQUAL(extents.mapped(), mapped - 11 * kPage);
    bench.well();
}

TEST(a_run_of_handles_is_cut_in_its_last) {
    Bench bench;
    Extents& extents = *bench.extents;
    const std::uint64_t first = bench.create(2);
    bench.create(4);
    bench.give(first);
    bench.give(first + 2 * kPage);
    CHECK(bench.pages_of(bench.hold(extents.take(5 * kPage, 5 * kPage, 4 * kPage))) ==
          (PageMap{2, 3}));
    CHECK(bench.idle() == (IdleList{{first + 5 * kPage, 1}}));
    bench.well();
}

TEST(a_handle_that_is_cut_already_is_cut_for_anything) {
    Bench bench;
    Extents& extents = *bench.extents;
    const std::uint64_t begin = bench.scatter({8})[0];
    CHECK(!extents.take(kPage, kPage, 0));
    const std::uint64_t front = bench.hold(extents.take(5 * kPage, 5 * kPage, kEver));
    const std::uint64_t next = bench.hold(extents.take(kPage, kPage, 0));
    CHECK_EQUAL(next, begin + 5 * kPage);
    CHECK(bench.idle() == (IdleList{{begin + 6 * kPage, 2}}));
    bench.well();
    bench.give(next);
    bench.give(front);
    CHECK(!extents.take(kPage, kPage, 0));  // whole again
}

TEST(new_memory_is_handles_of_a_size_and_is_cut_between_them) {
    Bench bench;
    Extents& extents = *bench.extents;
    extents.set_handle_bytes(4 * kPage);
    reset_calls();
    const std::uint64_t made = bench.create(10);
    CHECK_EQUAL(calls(), std::string("{\"cuMemGetInfo_v2\":1,\"cuMemCreate\":3,\"cuMemMap\":3,"
                                     "\"cuMemSetAccess\":1}"));
    CHECK(bench.pages_of(made) == (PageMap{4, 4, 2}));
    bench.well();
    bench.give(made);
    CHECK_EQUAL(bench.hold(extents.take(4 * kPage, 4 * kPage, 0)), made);
    Failure why;
    // The rest of what is put together is new.
    CHECK(bench.pages_of(bench.hold(extents.compose(11 * kPage, 5 * kPage, why))) ==
          (PageMap{4, 2, 4, 1}));
    bench.well();
}

TEST(what_the_card_does_not_have_is_not_taken_in_part) {
    Bench bench;
    bench.extents->set_handle_bytes(2 * kPage);
    reset_calls();
    Failure why;
    CHECK(!bench.extents->create(kCard + kPage, why));
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(calls(), std::string("{\"cuMemGetInfo_v2\":1}"));
}

TEST(new_memory_that_fails_at_any_handle_leaves_nothing) {
    Bench bench;
    Extents& extents = *bench.extents;
    extents.set_handle_bytes(2 * kPage);
    for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
        for (std::uint64_t time = 1; time <= 3; ++time) {
            if (std::string_view(call) == "cuMemSetAccess" && time > 1) break;
            REQUIRE(sim().inject(call, time, 1, CUDA_ERROR_OUT_OF_MEMORY, 0) == 0);
            Failure why;
            CHECK(!extents.create(6 * kPage, why));
            CHECK(why.kind == Failure::Kind::out_of_memory);
            extents.unmap_old(kEver);
            CHECK_EQUAL(extents.mapped(), std::uint64_t{0});
            bench.well();
        }
    }
}

TEST(composed_memory_holds_what_is_written_and_is_used_while_old_places_are_unmapped) {
    Bench bench;
    Extents& extents = *bench.extents;
    const auto idle = bench.scatter({3, 2, 4});
    CHECK(!extents.take(7 * kPage, kEver, 0));
    reset_calls();
    Failure why;
    const std::uint64_t made = bench.hold(extents.compose(7 * kPage, 0, why));
    CHECK_EQUAL(calls(), std::string("{\"cuMemMap\":2,\"cuMemSetAccess\":1}"));
    CHECK(bench.pages_of(made) == (PageMap{4, 3}));
    bench.well();
    for (std::uint64_t page = 0; page < 7; ++page) write(made + page * kPage, 100 + page);
    // The old place of the first piece shares its bytes as long as it is mapped.
    CHECK_EQUAL(read(idle[2]), std::uint64_t{100});
    const CUstream stream = gpu::make_stream();
    CHECK_EQUAL(gpu::spin(gpu::kernel("vk_spin"), 1000000, 1, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8Async(made + kPage + 64, 7, 64, stream), CUDA_SUCCESS);
    CHECK(!extents.unmap_old(1));
    CHECK(extents.unmap_old(1));
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    for (std::uint64_t page = 0; page < 7; ++page)
        CHECK_EQUAL(read(made + page * kPage), 100 + page);
    std::uint64_t value = 0;
    CHECK(cu().cuMemcpyDtoH_v2(&value, idle[2], sizeof value) != CUDA_SUCCESS);
    bench.well();
    CHECK(bench.idle() == (IdleList{{idle[1], 2}}));
    // Its pieces may be taken apart again.
    bench.give(made);
    CHECK_EQUAL(bench.hold(extents.take(3 * kPage, 3 * kPage, 0)), made + 4 * kPage);
    CHECK_EQUAL(read(made + 4 * kPage), std::uint64_t{104});
    bench.well();
}

TEST(compose_moves_few_pieces_and_overshoots_little) {
    Bench bench;
    Extents& extents = *bench.extents;
    bench.scatter({2, 5, 30, 3, 4});
    Failure why;
    // 5, then of 3 and 4 and 2 the smallest that covers the remaining 2.
    const std::uint64_t seven = bench.hold(extents.compose(7 * kPage, 0, why));
    CHECK(bench.pages_of(seven) == (PageMap{5, 2}));
    // 4, then 3 for the remaining 1.
    const std::uint64_t five = bench.hold(extents.compose(5 * kPage, 0, why));
    CHECK(bench.pages_of(five) == (PageMap{4, 3}));
    // The one that is left is longer than what is asked for: take() cuts it.
    CHECK(!extents.compose(5 * kPage, 0, why));
    CHECK_EQUAL(extents.idle(), 30 * kPage);
    bench.well();
}

TEST(compose_creates_what_is_short_and_no_more_than_it_may) {
    Bench bench;
    Extents& extents = *bench.extents;
    bench.scatter({3, 2});
    const IdleList before = bench.idle();
    const std::uint64_t mapped = extents.mapped();
    Failure why;
    CHECK(!extents.compose(9 * kPage, 3 * kPage, why));
    CHECK_EQUAL(why.kind, Failure::Kind::out_of_memory);
    CHECK_EQUAL(why.call, std::string());
    CHECK(bench.idle() == before);
    const std::uint64_t made = bench.hold(extents.compose(9 * kPage, 4 * kPage, why));
    CHECK(bench.pages_of(made) == (PageMap{3, 2, 4}));
    CHECK_EQUAL(extents.mapped(), mapped + 4 * kPage);
    CHECK_EQUAL(extents.idle(), std::uint64_t{0});
    for (std::uint64_t page = 0; page < 9; ++page) write(made + page * kPage, page);
    CHECK(extents.unmap_old(10));
    for (std::uint64_t page = 0; page < 9; ++page) CHECK_EQUAL(read(made + page * kPage), page);
    // More than the card has.
    Failure card;
    CHECK(!extents.compose(kCard, kEver, card));
    CHECK_EQUAL(card.kind, Failure::Kind::out_of_memory);
    CHECK_EQUAL(card.call, std::string("cuMemCreate"));
    bench.well();
}

TEST(a_driver_call_that_fails_changes_nothing) {
    // Twice: what was mapped is unmapped at once, and when the driver no longer refuses that.
    for (const bool unmap_too : {false, true}) {
        for (const auto& [symbol, count] : std::vector<std::pair<const char*, std::uint64_t>>{
                 {"cuMemCreate", 1}, {"cuMemMap", 3}, {"cuMemSetAccess", 1}}) {
            for (std::uint64_t nth = 1; nth <= count; ++nth) {
                Bench bench;
                Extents& extents = *bench.extents;
                bench.scatter({3, 2});
                const IdleList before = bench.idle();
                const std::uint64_t mapped = extents.mapped(), free = free_on_card();
                const auto inject = [&] {
                    CHECK_EQUAL(sim().inject(symbol, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                    if (unmap_too) sim().inject("cuMemUnmap", 1, 1000, CUDA_ERROR_UNKNOWN, 0);
                };
                const auto same = [&](const Failure& why) {
                    CHECK_EQUAL(why.kind, Failure::Kind::driver);
                    CHECK_EQUAL(why.call, std::string(symbol));
                    bench.well();
                    CHECK(bench.idle() == before);
                    sim().clear_faults();
                    CHECK(extents.unmap_old(10));
                    CHECK_EQUAL(extents.mapped(), mapped);
                    CHECK_EQUAL(free_on_card(), free);
                    bench.well();
                };
                Failure why;
                inject();
                CHECK(!extents.compose(6 * kPage, kPage, why));
                same(why);
                if (nth == 1) {
                    inject();
                    CHECK(!extents.create(kPage, why));
                    same(why);
                }
                if (symbol != std::string("cuMemCreate") && nth < 3) {
                    inject();
                    CHECK_EQUAL(extents.join(why), std::uint64_t{0});
                    same(why);
                }
                const std::uint64_t made = bench.hold(extents.compose(6 * kPage, kPage, why));
                write(made + 5 * kPage, 42);
                CHECK_EQUAL(read(made + 5 * kPage), std::uint64_t{42});
                bench.well();
            }
        }
    }
}

TEST(join_makes_one_extent_of_all_idle_memory) {
    Bench bench;
    Extents& extents = *bench.extents;
    bench.scatter({2, 5, 3});
    Failure why;
    // A held page lies behind the largest: all move.
    CHECK_EQUAL(extents.join(why), 10 * kPage);
    bench.well();
    CHECK_EQUAL(bench.idle().size(), std::size_t{1});
    CHECK_EQUAL(extents.largest_idle(), 10 * kPage);
    CHECK_EQUAL(extents.join(why), std::uint64_t{0});  // all is one
    CHECK_EQUAL(why.kind, Failure::Kind::none);
    CHECK(extents.unmap_old(3));
    const std::uint64_t joined = bench.idle().front().first;
    CHECK_EQUAL(bench.hold(extents.take(10 * kPage, 10 * kPage, 0)), joined);
    CHECK(bench.pages_of(joined) == (PageMap{2, 5, 3}));
    write(joined + 9 * kPage, 42);
    CHECK_EQUAL(read(joined + 9 * kPage), std::uint64_t{42});
    bench.well();
}

TEST(join_leaves_the_largest_where_it_is_when_the_addresses_behind_it_are_free) {
    Bench bench;
    Extents& extents = *bench.extents;
    const auto small = bench.scatter({2, 3});
    const std::uint64_t largest = bench.create(5);
    bench.give(largest, 7);
    Failure why;
    reset_calls();
    CHECK_EQUAL(extents.join(why), 5 * kPage);
    CHECK_EQUAL(calls(), std::string("{\"cuMemMap\":2,\"cuMemSetAccess\":1}"));
    CHECK(bench.idle() == (IdleList{{largest, 10}}));
    bench.well();
    CHECK(!extents.unmap_old(1));
    CHECK(extents.unmap_old(1));
    CHECK_EQUAL(bench.addresses->take(2 * kPage), small[0]);
    bench.addresses->give(small[0], 2 * kPage);
    bench.well();
}

TEST(release_gives_back_what_is_idle_longest) {
    Bench bench;
    Extents& extents = *bench.extents;
    std::vector<std::uint64_t> made;
    for (int i = 0; i < 4; ++i) {
        made.push_back(bench.create(2));
        bench.create(1);
    }
    const std::int64_t since[] = {30, 10, 40, 20};
    for (int i = 0; i < 4; ++i) bench.give(made[i], since[i]);
    const std::uint64_t free = free_on_card();
    CHECK_EQUAL(extents.release(kEver, 10), std::uint64_t{0});
    CHECK_EQUAL(extents.release(kPage, 40), 2 * kPage);  // a whole piece
    CHECK(bench.idle() == (IdleList{{made[0], 2}, {made[2], 2}, {made[3], 2}}));
    CHECK_EQUAL(extents.release(kEver, 40), 4 * kPage);
    CHECK(bench.idle() == (IdleList{{made[2], 2}}));
    CHECK_EQUAL(free_on_card(), free + 6 * kPage);
    bench.well();
    // Handles keep their ages, whatever they are joined with.
    const std::uint64_t left = bench.create(2);
    CHECK_EQUAL(left, made[0]);
    const std::uint64_t between = left + 2 * kPage;
    bench.give(between, 50);
    bench.give(left, 5);
    CHECK_EQUAL(extents.release(kEver, 50), 4 * kPage);  // idle since 5 and 40
    CHECK(bench.idle() == (IdleList{{between, 1}}));
    CHECK_EQUAL(extents.release(kEver, 51), kPage);
    CHECK_EQUAL(extents.idle(), std::uint64_t{0});
    bench.well();
}

TEST(memory_with_an_old_place_goes_only_when_that_is_unmapped) {
    Bench bench;
    Extents& extents = *bench.extents;
    bench.scatter({2, 3});
    Failure why;
    bench.give(bench.hold(extents.compose(5 * kPage, 0, why)), 9);
    const std::uint64_t free = free_on_card();
    // Both old places are refused, then the one of three pages: what has none may go.
    CHECK_EQUAL(sim().inject("cuMemUnmap", 1, 3, CUDA_ERROR_UNKNOWN, 0), 0);
    CHECK_EQUAL(extents.release(kEver, kAlways), std::uint64_t{0});
    CHECK_EQUAL(extents.idle(), 5 * kPage);
    bench.well();
    CHECK_EQUAL(extents.release(kEver, kAlways), 2 * kPage);
    CHECK_EQUAL(free_on_card(), free + 2 * kPage);
    bench.well();
    CHECK_EQUAL(extents.release(kEver, kAlways), 3 * kPage);
    CHECK_EQUAL(free_on_card(), free + 5 * kPage);
    bench.well();
}

TEST(what_the_driver_refuses_to_take_stays_or_is_tried_again) {
    Bench bench;
    Extents& extents = *bench.extents;
    const auto idle = bench.scatter({2, 3, 4});
    CHECK_EQUAL(sim().inject("cuMemUnmap", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    CHECK_EQUAL(extents.release(3 * kPage, kAlways), 3 * kPage);
    CHECK(bench.idle() == (IdleList{{idle[0], 2}, {idle[2], 4}}));
    bench.well();
    // The handle is unmapped but not taken: no other is offered, and it is not forgotten.
    const std::uint64_t mapped = extents.mapped();
    CHECK_EQUAL(sim().inject("cuMemRelease", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    CHECK_EQUAL(extents.release(kEver, kAlways), std::uint64_t{0});
    CHECK_EQUAL(extents.mapped(), mapped);
    CHECK(bench.idle() == (IdleList{{idle[2], 4}}));
    bench.well();
    CHECK_EQUAL(extents.release(kEver, kAlways), 6 * kPage);
    bench.well();
    // The same at the end: the bench looks that nothing is left.
    CHECK_EQUAL(sim().inject("cuMem[UR]*", 1, 2, CUDA_ERROR_UNKNOWN, 0), 0);
    bench.extents.reset();
}

TEST(forgotten_extents_make_no_calls) {
    Bench bench;
    Extents& extents = *bench.extents;
    Failure why;
    bench.scatter({2, 3});
    bench.hold(extents.compose(5 * kPage, 0, why));
    reset_card();
    bench.held.clear();
    extents.forget();
    bench.addresses->forget();
    CHECK_EQUAL(extents.mapped() + extents.idle() + extents.largest_idle(), std::uint64_t{0});
    CHECK_EQUAL(extents.check(), std::string());
    reset_calls();
    CHECK(extents.unmap_old(10));
    CHECK_EQUAL(extents.release(kEver, kAlways), std::uint64_t{0});
    bench.extents.reset();
    bench.addresses.reset();
    CHECK_EQUAL(calls(), std::string("{}"));
}
