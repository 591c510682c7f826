// Swapping on the simulated GPU: bytes, addresses, counts, limits.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "swap_bench.h"

using namespace swap_bench;

TEST(bytes_and_addresses_survive) {
    const Card card(kWithData);
    {
        Program program(card, small(), 128 * kMiB);
        const std::uint64_t large = program.allocate(18 * kMiB);
        const std::uint64_t small_one = program.allocate(1000);
        CHECK_EQUAL(program.engine->usage().unbacked, 20 * kMiB);
        program.make_resident(0, kEverything);
        program.write(large, 18 * kMiB, 7);
        program.write(small_one, 1000, 8);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.engine->usage().swapped, 20 * kMiB);
        CHECK_EQUAL(program.credits.bytes, 128 * kMiB);
        CHECK(gpu::sim().host_alias(large) == nullptr);
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK_EQUAL(program.engine->usage().resident, 20 * kMiB);
        CHECK(Program::has(large, 18 * kMiB, 7));
        CHECK(Program::has(small_one, 1000, 8));
        program.check_credits();
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}

TEST(unbacked_chunks_are_neither_backed_nor_moved) {
    const Card card(kWithData);
    Program program(card, small(), 128 * kMiB);
    const std::uint64_t block = program.allocate(64 * kMiB);
    program.make_resident(block + 5 * kMiB, 1);
    CHECK_EQUAL(program.engine->usage().resident, 4 * kMiB);
    CHECK_EQUAL(program.credits.bytes, 124 * kMiB);
    program.write(block + 5 * kMiB, kMiB, 3);
    program.synchronize();
    program.swap_out();
    CHECK_EQUAL(program.engine->counters().copied_out_bytes, 4 * kMiB);
    CHECK_EQUAL(program.swap_in(), 0U);
    CHECK_EQUAL(program.engine->usage().unbacked, 60 * kMiB);
    CHECK(Program::has(block + 5 * kMiB, kMiB, 3));
}

TEST(chunks_go_by_their_addresses_and_only_as_many_as_needed) {
    const Card card(kWithData);
    Program program(card, small(), 128 * kMiB);
    std::vector<std::uint64_t> blocks;
    for (int block = 0; block < 4; ++block) blocks.push_back(program.allocate(4 * kMiB));
    program.make_resident(0, kEverything);
    for (const std::uint64_t block : blocks) program.write(block, 4 * kMiB, 1);
    program.synchronize();
    program.swap_out(5 * kMiB);
    CHECK_EQUAL(program.engine->usage().swapped, 8 * kMiB);
    CHECK_EQUAL(program.credits.gifts, 2);
    CHECK(gpu::sim().host_alias(blocks[0]) == nullptr);
    CHECK(gpu::sim().host_alias(blocks[1]) == nullptr);
    CHECK(gpu::sim().host_alias(blocks[2]) != nullptr);
    CHECK(gpu::sim().host_alias(blocks[3]) != nullptr);
    program.credits.bytes = 4 * kMiB;
    CHECK_EQUAL(program.swap_in(), 4 * kMiB);
    CHECK(gpu::sim().host_alias(blocks[0]) != nullptr);
    program.credits.bytes = 4 * kMiB;
    CHECK_EQUAL(program.swap_in(), 0U);
}

TEST(blocks_may_come_and_go_between_parts_of_a_swap_in) {
    const Card card(kWithData);
    Program program(card, small(), 128 * kMiB);
    std::vector<std::uint64_t> blocks;
    for (std::uint32_t block = 0; block < 6; ++block) {
        blocks.push_back(program.allocate(4 * kMiB));
        program.make_resident(blocks.back(), 4 * kMiB);
        program.write(blocks.back(), 4 * kMiB, block);
    }
    program.synchronize();
    program.swap_out();
    program.credits.bytes = 4 * kMiB;
    CHECK_EQUAL(program.swap_in(), 20 * kMiB);
    CHECK(Program::has(blocks[0], 4 * kMiB, 0));
    program.credits.bytes = 4 * kMiB;
    CHECK_EQUAL(program.swap_in(), 16 * kMiB);
    CHECK(Program::has(blocks[1], 4 * kMiB, 1));
    program.free(blocks[3]);
    program.credits.bytes = 100 * kMiB;
    CHECK_EQUAL(program.swap_in(), 0U);
    CHECK_EQUAL(program.engine->usage().resident, 20 * kMiB);
    CHECK_EQUAL(program.credits.bytes, 88 * kMiB);
    CHECK_EQUAL(program.allocate(4 * kMiB), blocks[3]);
    for (const std::uint32_t block : {0U, 1U, 2U, 4U, 5U}) {
        CHECK(Program::has(blocks[block], 4 * kMiB, block));
    }
    check_whole(*program.engine);
}

TEST(calls_of_a_swap_are_counted) {
    const Card card(kOrdered);
    Program program(card, small(), 512 * kMiB);
    program.allocate(40 * kMiB);
    program.make_resident(0, kEverything);
    Failure why;
    CHECK(program.engine->prepare_host(40 * kMiB, why));
    CHECK_EQUAL(program.engine->counters().host_bytes, 40 * kMiB);
    gpu::sim().reset_call_counts();
    program.swap_out();
    CHECK_EQUAL(card.calls("cuMemcpyDtoHAsync_v2"), 10U);
    CHECK_EQUAL(card.calls("cuEventRecord"), 10U);
    CHECK_EQUAL(card.calls("cuEventSynchronize"), 10U);
    CHECK_EQUAL(card.calls("cuMemUnmap"), 10U);
    for (const char* none : {"cuMemRelease", "cuStreamSynchronize", "cuCtxSynchronize",
                             "cuMemHostRegister_v2", "cuMemHostAlloc", "cuStreamWaitEvent"}) {
        CHECK_EQUAL(card.calls(none), 0U);
    }
    gpu::sim().reset_call_counts();
    CHECK_EQUAL(program.swap_in(), 0U);
    for (const char* each :
         {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease", "cuMemcpyHtoDAsync_v2"}) {
        CHECK_EQUAL(card.calls(each), 10U);
    }
    CHECK_EQUAL(card.calls("cuEventRecord"), 1U);
    CHECK_EQUAL(card.calls("cuEventSynchronize"), 1U);
    CHECK_EQUAL(card.calls("cuStreamSynchronize"), 0U);
    const Counters counters = program.engine->counters();
    CHECK_EQUAL(counters.copies_out, 10U);
    CHECK_EQUAL(counters.copied_out_bytes, 40 * kMiB);
    CHECK_EQUAL(counters.copies_in, 10U);
    CHECK_EQUAL(counters.copied_in_bytes, 40 * kMiB);
    CHECK_EQUAL(counters.waits, 11U);
    CHECK_EQUAL(counters.card_bytes, 40 * kMiB);
    CHECK_EQUAL(counters.host_used, 0U);
    CHECK_EQUAL(counters.host_bytes, 40 * kMiB);
    // Swaps again without new host memory.
    gpu::sim().reset_call_counts();
    program.swap_out();
    CHECK_EQUAL(card.calls("cuMemHostRegister_v2"), 0U);
    program.engine->trim_host();
    CHECK_EQUAL(program.engine->counters().host_bytes, 40 * kMiB);
    CHECK_EQUAL(program.swap_in(), 0U);
    program.engine->trim_host();
    CHECK_EQUAL(program.engine->counters().host_bytes, 0U);
}

TEST(limit_counts_chunks_and_can_change) {
    const Card card(kOrdered);
    {
        Program program(card, small(), kGiB);
        Engine& engine = *program.engine;
        Failure why;
        engine.set_limit(8 * kMiB);
        CHECK(engine.allocate(4 * kMiB, why) != 0);
        // 512 bytes take a page that other small ones share.
        CHECK(engine.allocate(512, why) != 0);
        CHECK_EQUAL(engine.usage().unbacked, 6 * kMiB);
        CHECK_EQUAL(engine.allocate(3 * kMiB, why), 0U);
        CHECK(why.kind == Failure::Kind::out_of_memory);
        CHECK_EQUAL(engine.usage().unbacked, 6 * kMiB);
        CHECK(engine.allocate(512, why) != 0);
        engine.set_limit(4 * kMiB);  // what is there stays
        CHECK_EQUAL(engine.create(2 * kMiB, why), 0U);
        engine.set_limit(10 * kMiB);
        CHECK(engine.create(4 * kMiB, why) != 0);
        check_whole(engine);
    }
    check_nothing_left();
}

TEST(limits_say_what_they_are) {
    const Card card(kOrdered);
    Settings settings = small();
    settings.limit = 64 * kMiB;
    settings.host.limit = 16 * kMiB;
    Program program(card, settings, 512 * kMiB);
    const std::uint64_t block = program.allocate(32 * kMiB);
    Failure why;
    CHECK_EQUAL(program.engine->allocate(40 * kMiB, why), 0U);
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(why.message,
                "41943040 bytes more are over the limit of 64 MiB, of which 32 MiB are in use");
    check_whole(*program.engine);
    CHECK_EQUAL(program.engine->allocate(0, why), 0U);
    CHECK(why.kind == Failure::Kind::bad_value);
    std::uint64_t freed = 0;
    CHECK(!program.engine->free(block + 512, freed, why));
    CHECK(why.kind == Failure::Kind::bad_value);
    program.make_resident(0, kEverything);
    // As much as fits goes; the rest stays on the card.
    CHECK(!program.engine->swap_out(kEverything, program.credits, why));
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(why.message,
                "host memory for swapped data is limited to 16 MiB, of which 16 MiB are held; 4 "
                "MiB more are needed. swapping out stopped after 16 MiB of 32 MiB. Nothing is "
                "lost: the rest is where it was");
    CHECK_EQUAL(program.engine->usage().swapped, 16 * kMiB);
    CHECK_EQUAL(program.engine->usage().resident, 16 * kMiB);
    settings.chunk_bytes = 3 * kMiB;
    CHECK(Engine::open(card.call, card.context, 0, settings, why) == nullptr);
    CHECK(why.kind == Failure::Kind::bad_value);
}

TEST(freed_memory_goes_back_wherever_it_is) {
    const Card card(kOrdered);
    {
        Program program(card, small(), 512 * kMiB);
        std::vector<std::uint64_t> blocks;
        for (int block = 0; block < 3; ++block) blocks.push_back(program.allocate(8 * kMiB));
        program.make_resident(blocks[0], 16 * kMiB);
        program.swap_out(8 * kMiB);
        for (const std::uint64_t block : blocks) program.free(block);
        CHECK_EQUAL(program.credits.bytes, 512 * kMiB);
        CHECK_EQUAL(program.engine->counters().host_used, 0U);
        const Usage usage = program.engine->usage();
        CHECK_EQUAL(usage.unbacked + usage.resident + usage.swapped, 0U);
        // One empty chunk for small blocks stays, until the memory is wanted.
        const std::uint64_t small_one = program.allocate(100);
        program.make_resident(small_one, 100);
        program.free(small_one);
        CHECK_EQUAL(program.credits.bytes, 510 * kMiB);
        CHECK_EQUAL(program.allocate(200), small_one);
        program.free(small_one);
        program.swap_out();
        CHECK_EQUAL(program.credits.bytes, 512 * kMiB);
        CHECK_EQUAL(program.engine->counters().copies_out, 2U);  // of the swap above
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}

// One call at a time: threads of the program may come at any moment.
TEST(threads_may_allocate_and_free_while_chunks_move) {
    const Card card(kOrdered);
    {
        Program program(card, small(), 512 * kMiB);
        program.allocate(16 * kMiB);
        program.make_resident(0, kEverything);
        std::atomic<int> running{3};
        std::vector<std::thread> threads;
        for (unsigned seed = 0; seed < 3; ++seed) {
            threads.emplace_back([&, seed] {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                std::mt19937 random(seed);
                std::vector<std::uint64_t> own;
                for (int step = 0; step < testing::rounds(100, 2000); ++step) {
                    Failure why;
                    const std::uint64_t bytes = 1 + random() % (6 * kMiB);
                    own.push_back(program.engine->allocate(bytes, why));
                    CHECK_EQUAL(program.engine->find(own.back() + bytes - 1)->bytes, bytes);
                    CHECK(program.engine->usage().swapped <= 512 * kMiB);
                    std::uint64_t freed = 0;  // the credits stay where they are
                    if (own.size() > 3) {
                        CHECK(program.engine->free(own.front(), freed, why));
                        own.erase(own.begin());
                    }
                }
                for (const std::uint64_t block : own) {
                    std::uint64_t freed = 0;
                    Failure why;
                    CHECK(program.engine->free(block, freed, why));
                }
                --running;
            });
        }
        while (running > 0) {
            program.swap_out();
            CHECK_EQUAL(program.swap_in(), 0U);
            check_whole(*program.engine);
        }
        for (std::thread& thread : threads) thread.join();
        CHECK_EQUAL(program.engine->counters().allocated, 16 * kMiB);
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}
