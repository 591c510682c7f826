// The order of copies, unmapping and the program's work, watched by the checker: one sequence for
// each rule. The same program is built with one rule broken at a time (broken_rules): the checker
// must then report.
#include <random>

#include "swap_bench.h"

using namespace swap_bench;

TEST(a_chunk_stays_mapped_until_its_copy_is_done) {
    const Card card(kOrdered);
    {
        Program program(card, small(), 512 * kMiB);
        program.allocate(40 * kMiB);
        program.make_resident(0, kEverything);
        program.swap_out();
    }
    check_order(card);
    check_nothing_left();
}

TEST(work_of_the_program_comes_after_the_copy_to_the_card) {
    const Card card(kOrdered);
    {
        Program program(card, small(), 512 * kMiB);
        const std::uint64_t block = program.allocate(40 * kMiB);
        program.make_resident(0, kEverything);
        program.write(block, 40 * kMiB, 1);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.swap_in(), 0U);
        program.write(block, 40 * kMiB, 2);
    }
    check_order(card);
    check_nothing_left();
}

TEST(host_memory_is_written_again_after_it_was_read) {
    const Card card(kOrdered);
    {
        Settings settings = small();
        settings.host.limit = 8 * kMiB;
        Program program(card, settings, 512 * kMiB);
        // What comes later lies before it, and leaves first.
        const std::uint64_t before = program.allocate(8 * kMiB);
        program.allocate(8 * kMiB);
        program.free(before);
        program.make_resident(0, kEverything);
        for (int round = 0; round < 3; ++round) {
            program.swap_out();
            CHECK_EQUAL(program.swap_in(), 0U);
        }
        const std::uint64_t two = program.allocate(8 * kMiB);
        CHECK_EQUAL(two, before);
        program.make_resident(two, 8 * kMiB);
        program.swap_out(8 * kMiB);
    }
    check_order(card);
    check_nothing_left();
}

// With data off all hashes are equal: the second time nothing is copied.
TEST(a_chunk_stays_mapped_until_it_is_hashed) {
    const Card card(kOrdered);
    {
        Program program(card, hashing(), 512 * kMiB);
        program.allocate(40 * kMiB);
        program.make_resident(0, kEverything);
        program.swap_out();
        CHECK_EQUAL(program.swap_in(), 0U);
        program.swap_out();
        CHECK_EQUAL(program.engine->counters().dropped, 10U);
    }
    check_order(card);
    check_nothing_left();
}

TEST(work_of_the_program_comes_after_zeros) {
    const Card card(kOrdered);
    {
        Program program(card, hashing(), 512 * kMiB);
        const std::uint64_t block = program.allocate(40 * kMiB);
        program.make_resident(block, 40 * kMiB);
        program.write(block, 40 * kMiB, 1);
        program.synchronize();
        const std::uint64_t other = program.allocate(40 * kMiB);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        program.write(other, 40 * kMiB, 1);
        // And memory goes after them.
        const std::uint64_t third = program.allocate(40 * kMiB);
        std::uint64_t missing = 0;
        Failure why;
        CHECK(program.engine->make_all_resident(program.credits, missing, why));
        program.free(third);
    }
    check_order(card);
    check_nothing_left();
}

TEST(freed_chunks_wait_for_their_copies) {
    const Card card(kOrdered);
    {
        Program program(card, hashing(), 512 * kMiB);
        const std::uint64_t block = program.allocate(40 * kMiB);
        program.make_resident(0, kEverything);
        program.swap_out();
        std::uint64_t missing = 0;
        Failure why;
        CHECK(program.engine->swap_in(program.credits, missing, why));
        CHECK_EQUAL(program.engine->usage().arriving, 40 * kMiB);
        program.free(block);
        CHECK_EQUAL(program.credits.bytes, 512 * kMiB);
        // And those that leave again before anybody has waited.
        program.allocate(20 * kMiB);
        program.make_resident(0, kEverything);
        program.swap_out();
        CHECK(program.engine->swap_in(program.credits, missing, why));
        program.swap_out();
        CHECK_EQUAL(program.engine->usage().swapped, 20 * kMiB);
    }
    check_order(card);
    check_nothing_left();
}

TEST(random_orders_are_kept) {
    for (unsigned seed = 0; seed < static_cast<unsigned>(testing::rounds(10, 100)); ++seed) {
        const Card card(kOrdered);
        {
            Settings settings = seed % 2 == 0 ? small() : hashing();
            if (seed % 3 == 0) settings.host.limit = 64 * kMiB;
            Program program(card, settings, 512 * kMiB);
            std::mt19937 random(seed);
            std::vector<std::uint64_t> blocks;
            for (int step = 0; step < 100; ++step) {
                Failure why;
                std::uint64_t missing = 0;
                switch (random() % 6) {
                    case 0:
                        blocks.push_back(program.allocate(
                            random() % 4 == 0 ? 16 * kMiB : 4096 + random() % (6 * kMiB)));
                        break;
                    case 1:
                        if (blocks.size() < 6) break;
                        program.free(blocks.front());
                        blocks.erase(blocks.begin());
                        break;
                    case 2:
                        program.make_resident(0, kEverything);
                        for (const std::uint64_t block : blocks) program.write(block, 4096, 1);
                        program.synchronize();
                        break;
                    case 3:
                        CHECK(program.engine->swap_in(program.credits, missing, why));
                        break;
                    default:
                        // The limit of host memory may stop it.
                        program.engine->swap_out(random() % (32 * kMiB), program.credits, why);
                }
                check_whole(*program.engine);
            }
        }
        check_order(card);
        check_nothing_left();
    }
}
