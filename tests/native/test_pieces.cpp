// Pieces on the simulated GPU: created, moved, released, and what is left when the driver refuses.
#include "pieces_bench.h"

using namespace pieces;

namespace {

using Pages = std::vector<std::uint64_t>;

void reset_calls() { sim().reset_call_counts(); }

// Two pieces with a page between, and the addresses to map them and `create` new pages at.
struct Moving {
    explicit Moving(Bench& bench, std::uint64_t create) : bytes((5 + create) * kPage) {
        first = bench.create(4, 3);  // and the page between
        second = bench.create(2);
        moved = bench.whole(first, 3);
        const auto more = bench.whole(second, 2);
        moved.insert(moved.end(), more.begin(), more.end());
        to = bench.addresses->take(bytes);
    }
    std::uint64_t bytes, first = 0, second = 0, to = 0;
    std::vector<Mapping> moved;
};

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

TEST(new_memory_is_pieces_of_a_size_and_access_is_set_once) {
    Bench bench;
    reset_calls();
    const std::uint64_t made = bench.create(10, 4);
    CHECK_EQUAL(calls(), std::string("{\"cuMemGetInfo_v2\":1,\"cuMemCreate\":3,\"cuMemMap\":3,"
                                     "\"cuMemSetAccess\":1}"));
    CHECK(bench.pages_of(made, 10) == (Pages{4, 4, 2}));
    CHECK_EQUAL(bench.pieces->count(), std::size_t{3});
    CHECK_EQUAL(bench.pieces->mapped(), 10 * kPage);
    bench.well();
    reset_calls();
    bench.create(2, 4);  // one piece: the driver says whether it has it
    CHECK_EQUAL(calls(), std::string("{\"cuMemCreate\":1,\"cuMemMap\":1,\"cuMemSetAccess\":1}"));
    // A page of its own at the end of a large one: the next growth begins beside it.
    CHECK(bench.pages_of(bench.create(4, 4), 4) == (Pages{3, 1}));
}

TEST(only_pieces_that_are_wholly_inside_an_extent_count) {
    Bench bench;
    const std::uint64_t made = bench.create(10, 4);  // 4, 4, 2
    CHECK(bench.pages_of(made, 3).empty());
    CHECK(bench.pages_of(made, 7) == (Pages{4}));
    CHECK(bench.pages_of(made + kPage, 9) == (Pages{4, 2}));
    CHECK(bench.pages_of(made + kSpan, 8) == (Pages{4}));
    int visited = 0;
    bench.pieces->each_whole({made, 10 * kPage}, [&](const Mapping&, std::int64_t) {
        ++visited;
        return visited < 2;
    });
    CHECK_EQUAL(visited, 2);
}

TEST(what_the_card_does_not_have_is_not_taken_in_part) {
    Bench bench;
    const std::uint64_t address = bench.addresses->take(kCard + kPage);
    reset_calls();
    Failure why;
    CHECK(!bench.pieces->map(address, {}, kCard + kPage, 2 * kPage, why));
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(calls(), std::string("{\"cuMemGetInfo_v2\":1}"));
    bench.well();  // the addresses are given back
}

TEST(moved_pieces_hold_what_is_written_and_are_used_while_old_mappings_go) {
    Bench bench;
    const Moving moving(bench, 4);
    for (std::uint64_t page = 0; page < 3; ++page) write(moving.first + page * kPage, 100 + page);
    reset_calls();
    Failure why;
    REQUIRE(bench.pieces->map(moving.to, moving.moved, 4 * kPage, 3 * kPage, why));
    CHECK_EQUAL(calls(), std::string("{\"cuMemGetInfo_v2\":1,\"cuMemCreate\":2,\"cuMemMap\":4,"
                                     "\"cuMemSetAccess\":1}"));
    CHECK(bench.pages_of(moving.to, 9) == (Pages{3, 2, 3, 1}));
    CHECK(bench.pages_of(moving.first, 6) == (Pages{1}));
    CHECK_EQUAL(bench.pieces->mapped(), 10 * kPage);
    for (const Mapping& mapping : moving.moved) bench.pieces->leave(mapping);
    bench.well();
    // The old mapping shares its bytes as long as it exists.
    for (std::uint64_t page = 0; page < 3; ++page) {
        CHECK_EQUAL(read(moving.to + page * kPage), 100 + page);
    }
    write(moving.to, 7);
    CHECK_EQUAL(read(moving.first), std::uint64_t{7});
    const CUstream stream = gpu::make_stream();
    CHECK_EQUAL(gpu::spin(gpu::kernel("vk_spin"), 1'000'000, 1, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cu().cuMemsetD8Async(moving.to + kPage + 64, 9, 64, stream), CUDA_SUCCESS);
    CHECK(!bench.pieces->unmap_old(1));
    bench.well();
    CHECK(bench.pieces->unmap_old(1));
    CHECK_EQUAL(cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(read(moving.to + kPage), std::uint64_t{101});
    std::uint64_t value = 0;
    CHECK(cu().cuMemcpyDtoH_v2(&value, moving.first, sizeof value) != CUDA_SUCCESS);
    // The addresses left behind are used again.
    CHECK_EQUAL(bench.addresses->take(3 * kPage), moving.first);
    bench.addresses->give(moving.first, 3 * kPage);
    bench.well();
}

TEST(an_old_mapping_stays_until_its_work_is_done) {
    Bench bench;
    const Moving moving(bench, 0);
    Failure why;
    REQUIRE(bench.pieces->map(moving.to, moving.moved, 0, kPage, why));
    bool done = false;
    bench.pieces->leave(moving.moved[0], [&] { return done; });
    bench.pieces->leave(moving.moved[1]);
    reset_calls();
    CHECK(!bench.pieces->unmap_old(1));  // its turn comes again behind the others
    CHECK_EQUAL(calls(), std::string("{}"));
    CHECK(!bench.pieces->unmap_old(kEvery));
    CHECK_EQUAL(calls(), std::string("{\"cuMemUnmap\":1}"));
    CHECK(!bench.pieces->may_release(bench.whole(moving.to, 3)[0]));
    CHECK(bench.pieces->may_release(bench.whole(moving.to + 3 * kPage, 2)[0]));
    bench.well();
    done = true;
    CHECK(bench.pieces->unmap_old(kEvery));
    CHECK(bench.pieces->may_release(bench.whole(moving.to, 3)[0]));
    bench.well();
}

TEST(the_time_when_a_piece_became_idle_goes_with_it) {
    Bench bench;
    const Moving moving(bench, 2);
    Pieces& pieces = *bench.pieces;
    pieces.note_idle({moving.first, kSpan}, 30);
    pieces.note_idle({moving.first + 2 * kPage, kPage}, 20);  // the last part of it counts
    pieces.note_idle({moving.second + kPage, kSpan}, 40);
    CHECK(bench.since(moving.first, 6) == (std::vector<std::int64_t>{30, 0, 40}));
    Failure why;
    REQUIRE(pieces.map(moving.to, moving.moved, 2 * kPage, 2 * kPage, why));
    CHECK(bench.since(moving.to, 7) == (std::vector<std::int64_t>{30, 40, 0}));
    for (const Mapping& mapping : moving.moved) pieces.leave(mapping);
    // An extent over several pieces reaches all of them.
    pieces.note_idle({moving.to + 2 * kPage, 4 * kPage}, 50);
    CHECK(bench.since(moving.to, 7) == (std::vector<std::int64_t>{50, 50, 50}));
    CHECK(bench.since(moving.first + 3 * kPage, 1) == (std::vector<std::int64_t>{0}));
}

TEST(a_driver_call_that_fails_changes_nothing) {
    // Twice: what was mapped is unmapped at once, and when the driver no longer refuses that.
    for (const bool unmap_too : {false, true}) {
        for (const auto& [symbol, count] : std::vector<std::pair<const char*, std::uint64_t>>{
                 {"cuMemCreate", 2}, {"cuMemMap", 4}, {"cuMemSetAccess", 1}}) {
            for (std::uint64_t nth = 1; nth <= count; ++nth) {
                Bench bench;
                const Moving moving(bench, 4);
                Pieces& pieces = *bench.pieces;
                write(moving.first, 42);
                const auto before = bench.all();
                const std::uint64_t free = free_on_card();
                CHECK_EQUAL(sim().inject(symbol, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                if (unmap_too) sim().inject("cuMemUnmap", 1, 1000, CUDA_ERROR_UNKNOWN, 0);
                Failure why;
                CHECK(!pieces.map(moving.to, moving.moved, 4 * kPage, 2 * kPage, why));
                CHECK_EQUAL(why.kind, Failure::Kind::driver);
                CHECK_EQUAL(why.call, std::string(symbol));
                bench.well();
                sim().clear_faults();
                CHECK(pieces.unmap_old(kEvery));
                const auto after = bench.all();
                CHECK(std::ranges::equal(before, after, {}, &Extent::address, &Extent::address));
                CHECK_EQUAL(pieces.mapped(), 6 * kPage);
                CHECK_EQUAL(pieces.unreleased(), std::uint64_t{0});
                CHECK_EQUAL(free_on_card(), free);
                bench.well();
                // All addresses are there again.
                CHECK_EQUAL(bench.addresses->take(moving.bytes), moving.to);
                REQUIRE(pieces.map(moving.to, moving.moved, 4 * kPage, 2 * kPage, why));
                CHECK_EQUAL(read(moving.to), std::uint64_t{42});
                for (const Mapping& mapping : moving.moved) pieces.leave(mapping);
                bench.well();
            }
        }
    }
}

TEST(a_released_piece_is_gone_with_its_addresses) {
    Bench bench;
    const std::uint64_t made = bench.create(6, 2);
    const auto mappings = bench.whole(made, 6);
    const std::uint64_t free = free_on_card();
    bool released = false;
    CHECK(bench.pieces->release(mappings[1], released));
    CHECK(released);
    CHECK_EQUAL(free_on_card(), free + 2 * kPage);
    CHECK(bench.pages_of(made, 6) == (Pages{2, 2}));
    CHECK_EQUAL(bench.pieces->mapped(), 4 * kPage);
    bench.well();
    CHECK_EQUAL(bench.create(2), made + 2 * kPage);
    bench.well();
}

TEST(a_piece_with_an_old_mapping_is_not_released) {
    Bench bench;
    const Moving moving(bench, 0);
    Failure why;
    REQUIRE(bench.pieces->map(moving.to, moving.moved, 0, kPage, why));
    for (const Mapping& mapping : moving.moved) bench.pieces->leave(mapping);
    const Mapping now = bench.whole(moving.to, 3)[0];
    reset_calls();
    bool released = false;
    CHECK(!bench.pieces->release(now, released));
    CHECK(!released);
    CHECK_EQUAL(calls(), std::string("{}"));
    CHECK(bench.pieces->unmap_old(kEvery));
    CHECK(bench.pieces->release(now, released));
    CHECK(released);
    bench.well();
}

TEST(what_the_driver_refuses_to_take_stays_or_is_tried_again) {
    Bench bench;
    const std::uint64_t made = bench.create(7, 3);
    const auto mappings = bench.whole(made, 6);
    CHECK_EQUAL(sim().inject("cuMemUnmap", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    bool released = true;
    CHECK(!bench.pieces->release(mappings[0], released));
    CHECK(bench.pages_of(made, 6) == (Pages{3, 3}));
    bench.well();
    // Unmapped, but the handle is not taken: it is not forgotten.
    CHECK_EQUAL(sim().inject("cuMemRelease", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    CHECK(bench.pieces->release(mappings[0], released));
    CHECK(!released);
    CHECK(bench.pages_of(made, 6) == (Pages{3}));
    CHECK_EQUAL(bench.pieces->mapped(), 7 * kPage);
    CHECK_EQUAL(bench.pieces->unreleased(), 3 * kPage);
    bench.well();
    CHECK(bench.pieces->unmap_old(kEvery));
    CHECK_EQUAL(bench.pieces->mapped(), 4 * kPage);
    bench.well();
    // The same at the end: the bench looks that nothing is left.
    bench.create(4, 2);
    CHECK_EQUAL(sim().inject("cuMem[UR]*", 1, 2, CUDA_ERROR_UNKNOWN, 0), 0);
    bench.pieces.reset();
}

TEST(forgotten_pieces_make_no_calls) {
    Bench bench;
    const Moving moving(bench, 2);
    Failure why;
    REQUIRE(bench.pieces->map(moving.to, moving.moved, 2 * kPage, 2 * kPage, why));
    for (const Mapping& mapping : moving.moved) bench.pieces->leave(mapping);
    reset_card();
    bench.pieces->forget();
    bench.addresses->forget();
    CHECK_EQUAL(bench.pieces->mapped() + bench.pieces->count(), std::uint64_t{0});
    CHECK_EQUAL(bench.pieces->check({}), std::string());
    reset_calls();
    CHECK(bench.pieces->unmap_old(kEvery));
    bench.pieces.reset();
    bench.addresses.reset();
    CHECK_EQUAL(calls(), std::string("{}"));
}

TEST(memory_that_all_addresses_have_is_one_piece_that_never_moves_or_goes) {
    reset_card();
    {
        Failure why;
        const auto addresses = Addresses::allocate(cu(), 8 * kPage, why);
        REQUIRE(addresses != nullptr && addresses->have_memory());
        reset_calls();
        {
            Pieces pieces(cu(), 0, *addresses);
            const Extent all{addresses->base(), 8 * kPage};
            CHECK_EQUAL(pieces.count(), std::size_t{1});
            CHECK_EQUAL(pieces.mapped(), 8 * kPage);
            CHECK_EQUAL(pieces.check({all}), std::string());
            CHECK(addresses->holes().empty());
            pieces.note_idle({all.address + kSpan, kSpan}, 5);
            pieces.each_whole(all, [](const Mapping&, std::int64_t) {
                CHECK(false);  // nothing can move
                return true;
            });
            CHECK(pieces.unmap_old(kEvery));
        }
        CHECK_EQUAL(calls(), std::string("{}"));  // nor does its end give anything back
    }
    CHECK_EQUAL(calls(), std::string("{\"cuMemFree_v2\":1}"));
    check_nothing_left();
}

TEST(the_check_finds_what_is_wrong) {
    Bench bench;
    const std::uint64_t made = bench.create(4, 2);
    const auto wrong = [&](std::vector<Extent> used) { return !bench.pieces->check(used).empty(); };
    CHECK(!wrong({{made, kSpan}, {made + kSpan, 4 * kPage - kSpan}}));  // ranges on the pieces
    CHECK(wrong({}));
    CHECK(wrong({{made, 3 * kPage}}));
    CHECK(wrong({{made, 2 * kPage}, {made + kPage, 3 * kPage}}));
    CHECK(wrong({{made, 4 * kPage}, {made + 6 * kPage, kPage}}));
    CHECK(wrong({{made, kPage}, {made + 2 * kPage, 2 * kPage}}));
    bench.addresses->take(kPage);  // lost
    CHECK(wrong({{made, 4 * kPage}}));
    bench.addresses->give(made + 4 * kPage, kPage);
    bench.well();
}
