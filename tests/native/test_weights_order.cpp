// The order of copies and of the work that uses them, kept by the streamer of weights and watched
// by the checker: one sequence for each rule. The same program is built with one rule broken at a
// time (broken_rules): the checker must then report.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "weights_bench.h"

using namespace weights_bench;

TEST(a_stream_waits_for_the_copy_of_a_group_that_it_enters) {
    const Card card;
    {
        const Model model(card, {512, 512});
        const Reader one(model), two(model);
        one.must_use(0);  // copied now
        CHECK(model.prefetch(1, false));
        two.must_use(1);  // copied before
        two.must_use(0);  // by another stream than the one it was copied for
        CHECK_EQUAL(model.streamer->counters().copies, std::uint64_t{2});
        CHECK_EQUAL(model.streamer->counters().misses, std::uint64_t{1});
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

TEST(a_copy_waits_for_the_work_that_uses_what_it_overwrites) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            const Model model(card, {1536, 1536});
            const Reader one(model), two(model);
            CHECK(model.enter(0, one.stream));
            CHECK(model.enter(0, two.stream));
            card.occupy(two.stream);
            two.read(0);
            one.read(0);
            CHECK(model.leave(0, two.stream));
            CHECK(model.leave(0, one.stream));
            CHECK(model.prefetch(1, urgent));
            check_order(card);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(a_group_is_copied_again_behind_the_work_that_used_it) {
    const Card card;
    {
        const Model model(card, {512}, 512);
        const Reader reader(model);
        for (const GroupIndex group : {0u, 1u}) {
            for (const bool urgent : {true, false, true}) {
                CHECK(model.prefetch(group, urgent));
                card.occupy(reader.stream);
                reader.must_use(group);
                CHECK(model.evict(group));
            }
        }
        CHECK_EQUAL(model.streamer->counters().copies, std::uint64_t{6});
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

TEST(a_copy_waits_for_one_on_the_other_copy_stream_that_nobody_used) {
    for (const bool urgent : {true, false}) {
        const Card card;
        {
            const Model model(card, {1536, 1536});
            CHECK(model.prefetch(0, !urgent));
            CHECK(model.prefetch(1, urgent));
            check_order(card);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(the_other_copy_stream_is_waited_for_where_only_the_end_of_a_group_is_shared) {
    const Card card;
    {
        // The last one covers the end of the ring, and its beginning: the first byte of group 0.
        const Model model(card, {1024, 512, 768}, 0, 64 * kKiB);
        CHECK(model.prefetch(0, false));
        CHECK(model.prefetch(2, true));
        const Reader reader(model);
        reader.must_use(2);
        CHECK(!model.streamer->on_its_way(0));
        reader.must_use(1);
        reader.must_use(0);
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

namespace {

void stage_more_chunks_than_slots(Groups kind) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            const Model model(card, {1024, 512, 512}, 0, 256 * kKiB, kind);
            const Reader reader(model);
            CHECK(model.prefetch(0, urgent));  // eight chunks
            reader.must_use(0);
            reader.must_use(1);
            CHECK(model.prefetch(2, !urgent));
            reader.must_use(2);
        }
        check_order(card);
        check_nothing_left();
    }
}

}  // namespace

TEST(packed_chunks_are_decoded_behind_their_copies_and_slots_are_free_again_behind_that) {
    stage_more_chunks_than_slots(Groups::packed);
}

TEST(shares_are_gathered_behind_their_copies_and_slots_are_free_again_behind_that) {
    stage_more_chunks_than_slots(Groups::gathered);
}

TEST(a_copy_waits_for_the_work_at_an_address_that_a_group_was_moved_from) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            Model model(card, {512, 512});
            const Reader reader(model);
            CHECK(model.prefetch(0, false));
            CHECK(model.enter(0, reader.stream));
            CHECK(!model.move({{1, model.groups[0].address}, {0, model.groups[1].address}}));
            card.occupy(reader.stream);
            reader.read(0);
            CHECK(model.leave(0, reader.stream));
            // They change places, and nothing of the first is known at its old one any more.
            CHECK(model.move({{1, model.groups[0].address}, {0, model.groups[1].address}}));
            CHECK(!model.streamer->on_its_way(0));
            CHECK(model.prefetch(1, urgent));
            reader.must_use(1);
            reader.must_use(0);
            check_order(card);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(a_copy_waits_for_what_was_done_with_memory_that_a_group_is_moved_to) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            const auto pool = open_pool(card, limited(8));
            const StreamRef stream = card.stream(true);
            Model model(card, {512}, 512);
            const Reader reader(model);
            weights::GivingWay residents(*model.streamer, pool, stream);
            const std::uint64_t before = must_malloc(*pool, kMiB, stream);
            card.occupy(stream);
            card.use(before, kMiB, stream);
            must_free(*pool, before);
            const std::uint64_t block = must_malloc(*pool, kMiB, stream);
            CHECK_EQUAL(block, before);
            CHECK(model.move({{1, block}}, stream.handle));
            residents.settle(1, block, kMiB);
            CHECK(model.prefetch(1, urgent));
            reader.must_use(1);
            check_order(card);
        }
        check_order(card);
    }
}

TEST(memory_of_a_group_that_gives_way_is_used_again_behind_its_work) {
    for (const bool used : {true, false}) {
        const Card card;
        {
            const auto pool = open_pool(card, limited(8));
            const StreamRef stream = card.stream(true), asks = card.stream(true);
            Model model(card, {512}, 512);
            const Reader reader(model);
            weights::GivingWay residents(*model.streamer, pool, stream);
            const std::uint64_t block = must_malloc(*pool, kMiB, stream);
            CHECK(model.move({{1, block}}, stream.handle));
            residents.settle(1, block, kMiB);
            CHECK(model.prefetch(1, false));
            if (used) {
                CHECK(model.enter(1, reader.stream));
                Failure why;
                CHECK_EQUAL(pool->malloc(8 * kMiB, asks, true, why), std::uint64_t{0});
                card.occupy(reader.stream);
                reader.read(1);
                CHECK(model.leave(1, reader.stream));
            }
            const std::uint64_t whole = must_malloc(*pool, 8 * kMiB, asks);
            card.use(whole, 8 * kMiB, asks);
            CHECK_EQUAL(residents.counts().groups, std::uint64_t{1});
            CHECK_EQUAL(residents.counts().bytes, kMiB);
            CHECK(residents.settled().empty());
            // Without memory it cannot be used, until it is in the ring.
            CHECK(!model.enter(1, reader.stream));
            CHECK(!model.prefetch(1, true));
            CHECK(model.move({{1, model.groups[0].address}}));
            reader.must_use(1);
            reader.must_use(0);
            must_free(*pool, whole);
            check_order(card);
        }
        check_order(card);
    }
}

TEST(a_block_that_the_pool_failed_to_take_back_is_freed_with_the_next) {
    for (const bool again : {true, false}) {
        const Card card;
        {
            const auto pool = open_pool(card, limited(8));
            const StreamRef known = card.stream(true), stream = card.stream();
            Model model(card, {512}, 512);
            const Reader reader(model);
            {
                weights::GivingWay residents(*model.streamer, pool, stream);
                const std::uint64_t block = must_malloc(*pool, kMiB, known);
                CHECK(model.move({{1, block}}, known.handle));
                residents.settle(1, block, kMiB);
                reader.must_use(1);
                // The pool has not seen this stream yet, and asks for its context.
                CHECK_EQUAL(gpu::sim().inject("cuStreamGetCtx", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                CHECK_EQUAL(residents.give_way(1), std::uint64_t{0});
                CHECK(residents.settled().empty());
                CHECK_EQUAL(residents.counts().groups, std::uint64_t{1});
                CHECK_EQUAL(residents.counts().bytes, std::uint64_t{0});
                CHECK_EQUAL(pool->live_bytes(), kMiB);
                if (again) {
                    CHECK_EQUAL(residents.give_way(1), kMiB);
                    CHECK_EQUAL(residents.counts().bytes, kMiB);
                    CHECK_EQUAL(pool->live_bytes(), std::uint64_t{0});
                    CHECK_EQUAL(residents.give_way(1), std::uint64_t{0});
                }
            }
            CHECK_EQUAL(pool->live_bytes(), std::uint64_t{0});
            CHECK(model.move({{1, model.groups[0].address}}));
            check_order(card);
        }
        check_order(card);
    }
}

TEST(the_group_that_was_used_last_gives_way_first_and_pinned_ones_stay) {
    const Card card;
    {
        const auto pool = open_pool(card, limited(8));
        const StreamRef stream = card.stream(true), asks = card.stream(true);
        Model model(card, {256, 256, 256, 256});
        const Reader reader(model);
        {
            weights::GivingWay residents(*model.streamer, pool, stream);
            for (const GroupIndex group : {0u, 1u, 2u, 3u}) {
                const std::uint64_t block = must_malloc(*pool, 2 * kMiB, stream);
                CHECK(model.move({{group, block}}, stream.handle));
                residents.settle(group, block, 2 * kMiB);
            }
            for (const GroupIndex group : {2u, 0u, 3u, 1u}) reader.must_use(group);
            model.streamer->pin(3, true);
            const std::uint64_t one = must_malloc(*pool, kMiB, asks);
            CHECK_EQUAL(residents.settled(), (std::vector<GroupIndex>{0, 2, 3}));
            const std::uint64_t two = must_malloc(*pool, 2 * kMiB, asks);
            CHECK_EQUAL(residents.settled(), (std::vector<GroupIndex>{2, 3}));
            must_free(*pool, one);
            must_free(*pool, two);
            model.streamer->pin(3, false);
        }
        // What is left goes back with the object.
        CHECK_EQUAL(pool->live_bytes(), std::uint64_t{0});
        check_order(card);
    }
    check_order(card);
}

TEST(groups_give_way_on_one_thread_while_others_use_them) {
    const Card card;
    {
        const auto pool = open_pool(card, limited(8));
        const StreamRef stream = card.stream(true), asks = card.stream(true);
        Model model(card, {256, 256, 256, 256});
        const Reader one(model), two(model);
        weights::GivingWay residents(*model.streamer, pool, stream);
        std::uint64_t gave_way = 0;
        for (int round = 0; round < testing::rounds(4, 40); ++round) {
            const std::vector<GroupIndex> here = residents.settled();
            for (const GroupIndex group : {0u, 1u, 2u, 3u}) {
                if (std::ranges::find(here, group) != here.end()) continue;
                const std::uint64_t block = must_malloc(*pool, kMiB, stream);
                CHECK(model.move({{group, block}}, stream.handle));
                residents.settle(group, block, kMiB);
            }
            const auto use_all = [&](const Reader& reader, GroupIndex first) {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                for (GroupIndex step = 0; step < 40; ++step) {
                    const GroupIndex group = (first + step) % 4;
                    if (!model.enter(group, reader.stream)) continue;  // it gave way
                    reader.read(group);
                    CHECK(model.leave(group, reader.stream));
                }
            };
            std::thread first([&] { use_all(one, 0); }), second([&] { use_all(two, 2); });
            for (int times = 0; times < 4; ++times) {
                Failure why;
                const std::uint64_t bytes = (5 + times) * kMiB;
                if (const std::uint64_t block = pool->malloc(bytes, asks, true, why)) {
                    card.use(block, bytes, asks);
                    must_free(*pool, block);
                }
            }
            first.join();
            second.join();
            gave_way = residents.counts().groups;
        }
        CHECK(gave_way > 0);
        check_order(card);
    }
    check_order(card);
}

TEST(a_pass_as_scheduled_copies_ahead_and_in_order) {
    const Card card;
    {
        const Model model(card, kUnequal, 700);
        const Reader reader(model);
        std::vector<GroupIndex> order;
        for (GroupIndex group = 0; group < model.count(); ++group) order.push_back(group);
        model.streamer->add(model.schedule(order));
        for (int pass = 0; pass < 3; ++pass) {
            for (const GroupIndex group : order) reader.must_use(group);
        }
        // But for the resident group, everything is copied in every pass, once.
        const std::uint64_t ahead = model.schedule(order).start.size();
        CHECK_EQUAL(model.streamer->counters().misses, std::uint64_t{2});
        CHECK_EQUAL(model.streamer->counters().copies, 3 * kUnequal.size() + 1 + ahead);
        CHECK_EQUAL(model.streamer->counters().off_order, std::uint64_t{0});
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

TEST(what_is_in_use_or_pinned_is_not_overwritten) {
    const Card card;
    {
        const Model model(card, {1536, 1536, 1024});
        const Reader reader(model);
        CHECK(model.enter(0, reader.stream));
        CHECK(!model.prefetch(1, true));
        CHECK(!model.enter(1, reader.stream));
        CHECK(!model.evict(0));
        reader.read(0);
        CHECK(model.leave(0, reader.stream));
        CHECK(!model.leave(0, reader.stream));
        model.streamer->pin(0, true);
        CHECK(!model.prefetch(1, false));
        CHECK(!model.evict(0));
        model.streamer->pin(0, false);
        reader.must_use(1);
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}
