// Handles that a program maps at addresses of its own, while they move.
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "swap_bench.h"

using namespace swap_bench;

namespace {

constexpr std::uint64_t kBytes = 10 * kMiB;  // of a handle: three chunks
constexpr std::uint64_t kChunks = 3;

bool is_mapped(std::uint64_t address) { return gpu::sim().host_alias(address) != nullptr; }

// The code for the program of a call that must fail.
template <typename Call>
CUresult code_of(Call call) {
    Failure why;
    CHECK(!call(why));
    CHECK(!why.message.empty() || !why.call.empty());
    return why.code;
}

}  // namespace

TEST(a_handle_keeps_its_bytes_at_every_address) {
    const Card card(kWithData);
    {
        const Reservation own(card, 64 * kMiB);
        Program program(card, small(), 128 * kMiB);
        const std::uint64_t id = program.create(kBytes);
        CHECK_EQUAL(program.engine->usage().unbacked, kBytes);
        CHECK(!program.engine->find(id));
        program.make_resident(id, kBytes);
        program.map(id, own.address, kBytes);  // on the card at once
        program.write(own.address, kBytes, 7);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.engine->usage().swapped, kBytes);
        CHECK_EQUAL(program.engine->counters().card_bytes, 0U);
        for (const std::uint64_t address : {id, own.address}) CHECK(!is_mapped(address));
        program.map(id, own.address + 32 * kMiB, kBytes);  // when it is back
        CHECK_EQUAL(program.swap_in(), 0U);
        for (const std::uint64_t address : {id, own.address, own.address + 32 * kMiB}) {
            CHECK(Program::has(address, kBytes, 7));
        }
        program.write(own.address + 32 * kMiB, kBytes, 8);
        program.synchronize();
        CHECK(Program::has(own.address, kBytes, 8));
        program.check_credits();
        check_whole(*program.engine);
        // While it is away, an address goes too.
        program.swap_out();
        program.unmap(own.address, 64 * kMiB);
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK(!is_mapped(own.address));
        CHECK(Program::has(id, kBytes, 8));  // and mapped nowhere it moves all the same
        program.swap_out();
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK(Program::has(id, kBytes, 8));
        program.release(id);
        CHECK_EQUAL(program.credits.bytes, 128 * kMiB);
        CHECK_EQUAL(program.engine->counters().host_used, 0U);
    }
    check_order(card);
    check_nothing_left();
}

TEST(memory_lives_as_long_as_a_reference_or_a_mapping) {
    const Card card(kWithData);
    {
        const Reservation own(card, 64 * kMiB);
        Program program(card, small(), 128 * kMiB);
        const std::uint64_t id = program.create(2 * kMiB);
        CHECK(program.engine->retain(id));
        program.map(id, own.address, 2 * kMiB);
        program.make_resident(own.address, 1);  // by an address of the program
        program.release(id);
        program.release(id);
        CHECK_EQUAL(program.credits.bytes, 126 * kMiB);
        // Released: it is mapped no more, but its mapping gives a new reference.
        Failure why;
        std::uint64_t freed = 0;
        CHECK(!program.engine->map(id, own.address + 8 * kMiB, 2 * kMiB, why));
        CHECK(!program.engine->release(id, freed, why));
        CHECK_EQUAL(program.engine->handle_at(own.address + kMiB).value_or(0), id);
        CHECK(program.engine->retain(id));
        program.map(id, own.address + 8 * kMiB, 2 * kMiB);
        program.release(id);
        program.unmap(own.address, 2 * kMiB);
        CHECK_EQUAL(program.credits.bytes, 126 * kMiB);
        program.unmap(own.address + 8 * kMiB, 2 * kMiB);
        CHECK_EQUAL(program.credits.bytes, 128 * kMiB);
        CHECK(!program.engine->retain(id));
        CHECK_EQUAL(program.engine->usage().resident, 0U);
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}

TEST(what_a_card_refuses_is_refused) {
    const Card card(kOrdered);
    for (const bool resident : {false, true}) {
        const Reservation own(card, 64 * kMiB);
        Program program(card, small(), 128 * kMiB);
        Engine& engine = *program.engine;
        const std::uint64_t one = program.create(8 * kMiB), two = program.create(4 * kMiB);
        const std::uint64_t block = program.allocate(4 * kMiB);
        if (resident) program.make_resident(0, kEverything);
        const auto map = [&](std::uint64_t id, std::uint64_t address, std::uint64_t bytes) {
            return code_of([&](Failure& why) { return engine.map(id, address, bytes, why); });
        };
        std::uint64_t freed = 0;
        const auto unmap = [&](std::uint64_t address, std::uint64_t bytes) {
            return code_of([&](Failure& why) { return engine.unmap(address, bytes, freed, why); });
        };
        const auto allow = [&](std::uint64_t address, std::uint64_t bytes, CUmemAccessDesc access) {
            return code_of(
                [&](Failure& why) { return engine.set_access(address, bytes, {&access, 1}, why); });
        };
        const CUmemAccessDesc both = access_of(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        const auto invalid = CUDA_ERROR_INVALID_VALUE;
        CHECK_EQUAL(map(one, own.address, 4 * kMiB), CUDA_ERROR_NOT_SUPPORTED);
        CHECK_EQUAL(map(one, own.address, 16 * kMiB), CUDA_ERROR_NOT_SUPPORTED);
        CHECK_EQUAL(map(one, own.address + 4096, 8 * kMiB), invalid);
        CHECK_EQUAL(map(one, own.address, 0), invalid);
        CHECK_EQUAL(map(block, own.address, 4 * kMiB), invalid);
        CHECK_EQUAL(map(one + 2 * kMiB, own.address, 8 * kMiB), invalid);
        CHECK_EQUAL(map(one, block, 8 * kMiB), invalid);  // not the program's to map
        CHECK_EQUAL(allow(own.address, 8 * kMiB, both), invalid);
        program.map(one, own.address, 8 * kMiB);
        program.map(two, own.address + 8 * kMiB, 4 * kMiB);
        CHECK_EQUAL(map(two, own.address + 6 * kMiB, 4 * kMiB), invalid);
        CHECK_EQUAL(unmap(own.address, 4 * kMiB), invalid);
        CHECK_EQUAL(unmap(own.address + 4 * kMiB, 8 * kMiB), invalid);
        CHECK_EQUAL(unmap(own.address, 0), invalid);
        CHECK_EQUAL(allow(own.address, 10 * kMiB, both), invalid);
        CHECK_EQUAL(allow(own.address, 8 * kMiB, access_of(both.flags, 1)), invalid);
        CHECK_EQUAL(allow(own.address, 8 * kMiB, access_of(CUmemAccess_flags(2))), invalid);
        CHECK_EQUAL(code_of([&](Failure& why) { return engine.free(one, freed, why); }), invalid);
        CHECK_EQUAL(code_of([&](Failure& why) { return engine.release(block, freed, why); }),
                    invalid);
        CHECK_EQUAL(code_of([&](Failure& why) { return engine.create(kMiB, why) != 0; }), invalid);
        CHECK(engine.owns_mapping(own.address + 11 * kMiB));
        CHECK(!engine.owns_mapping(own.address + 12 * kMiB));
        CHECK(engine.owns_mapping(own.address + 6 * kMiB, 100 * kMiB));
        program.unmap(own.address, 12 * kMiB);
        program.unmap(own.address, 12 * kMiB);  // nothing is no error
        CHECK(!engine.owns_mapping(own.address, 64 * kMiB));
        check_whole(engine);
    }
}

TEST(access_is_remembered_and_given_again) {
    const Card card(kWithData);
    {
        const Reservation own(card, 64 * kMiB);
        Program program(card, small(), 128 * kMiB);
        const std::uint64_t one = program.create(kBytes), two = program.create(2 * kMiB);
        const CUmemLocation here = access_of(CU_MEM_ACCESS_FLAGS_PROT_READ).location;
        Failure why;
        CHECK(program.engine->map(one, own.address, kBytes, why));
        CHECK(program.engine->map(two, own.address + kBytes, 2 * kMiB, why));
        CHECK_EQUAL(program.engine->access(own.address, here), 0U);
        // Over both, before they are anywhere.
        program.allow(own.address, kBytes + 2 * kMiB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CHECK_EQUAL(program.engine->access(own.address + kBytes, here), 3U);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        for (int round = 0; round < 2; ++round) {
            program.write(own.address, kBytes + 2 * kMiB, 5);
            program.synchronize();
            program.swap_out();
            CHECK_EQUAL(program.make_all_resident(), 0U);
        }
        CHECK(Program::has(own.address, kBytes, 5));
        program.swap_out();
        program.allow(own.address, kBytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        CHECK_EQUAL(program.engine->access(own.address + kBytes - 1, here), 1U);
        // A copy into it is an error now, as it would be without the engine.
        CHECK(card.call.cuMemsetD8Async(own.address, 1, kMiB, program.stream) != CUDA_SUCCESS);
        program.allow(own.address, kBytes, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        CHECK_EQUAL(program.engine->access(own.address, here), 0U);
        check_whole(*program.engine);
    }
}

// What each call does on the card: a mapping costs a call for each chunk, and nothing waits.
TEST(calls_on_the_card_are_counted) {
    const Card card(kOrdered);
    const Reservation own(card, 64 * kMiB);
    Program program(card, small(), 128 * kMiB);
    const std::uint64_t id = program.create(kBytes);
    const auto check_calls = [&](std::uint64_t map, std::uint64_t allow, std::uint64_t unmap) {
        CHECK_EQUAL(card.calls("cuMemMap"), map);
        CHECK_EQUAL(card.calls("cuMemSetAccess"), allow);
        CHECK_EQUAL(card.calls("cuMemUnmap"), unmap);
        for (const char* none : {"cuStreamSynchronize", "cuCtxSynchronize"}) {
            CHECK_EQUAL(card.calls(none), 0U);
        }
        gpu::sim().reset_call_counts();
    };
    gpu::sim().reset_call_counts();
    program.map(id, own.address, kBytes);
    program.unmap(own.address, kBytes);
    program.map(id, own.address, kBytes);
    check_calls(0, 0, 0);
    program.make_resident(own.address, kBytes);
    check_calls(2 * kChunks, 2 * kChunks, 0);
    program.map(id, own.address + 16 * kMiB, kBytes);
    check_calls(kChunks, kChunks, 0);
    program.unmap(own.address, 64 * kMiB);
    check_calls(0, 0, 2 * kChunks);
}

TEST(chunks_of_a_handle_move_one_by_one) {
    const Card card(kWithData);
    const Reservation own(card, 64 * kMiB);
    Program program(card, small(), 128 * kMiB);
    const std::uint64_t id = program.create(kBytes);
    program.make_resident(id, kBytes);
    program.map(id, own.address, kBytes);
    program.write(own.address, kBytes, 1);
    program.synchronize();
    program.swap_out(6 * kMiB);
    CHECK_EQUAL(program.engine->usage().swapped, 8 * kMiB);
    CHECK(!is_mapped(own.address));
    CHECK(!is_mapped(own.address + 4 * kMiB));
    CHECK(Program::has(own.address + 8 * kMiB, 2 * kMiB, 1));
    program.credits.bytes = 4 * kMiB;
    CHECK_EQUAL(program.swap_in(), 4 * kMiB);
    CHECK(Program::has(own.address, 4 * kMiB, 1));
    check_whole(*program.engine);
}

TEST(everything_comes_at_once_and_unbacked_last) {
    const Card card(kWithData);
    {
        const Reservation own(card, 64 * kMiB);
        Program program(card, small(), 128 * kMiB);
        const std::uint64_t fresh = program.allocate(4 * kMiB), old = program.allocate(4 * kMiB);
        const std::uint64_t id = program.create(4 * kMiB);
        program.map(id, own.address, 4 * kMiB);
        program.make_resident(old, 4 * kMiB);
        program.make_resident(id, 4 * kMiB);
        program.write(old, 4 * kMiB, 1);
        program.write(own.address, 4 * kMiB, 2);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.engine->bytes_to_come(), 12 * kMiB);
        for (const std::uint64_t next : {old, id, fresh}) {
            CHECK(!is_mapped(next));
            program.credits.bytes = 4 * kMiB;
            program.make_all_resident();
            CHECK(is_mapped(next));
        }
        CHECK_EQUAL(program.engine->bytes_to_come(), 0U);
        CHECK(Program::has(own.address, 4 * kMiB, 2));
        CHECK(Program::has(old, 4 * kMiB, 1));
        // What is allocated later comes as well.
        program.credits.bytes = 120 * kMiB;
        program.allocate(4 * kMiB);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        CHECK_EQUAL(program.engine->usage().resident, 16 * kMiB);
        check_whole(*program.engine);
    }
    check_order(card);
}

// One wait for all that comes, whatever its number.
TEST(everything_comes_with_one_wait) {
    const Card card(kOrdered);
    Program program(card, hashing(), 512 * kMiB);
    program.allocate(40 * kMiB);
    program.create(32 * kMiB);
    CHECK_EQUAL(program.make_all_resident(), 0U);
    CHECK_EQUAL(program.engine->counters().waits, 1U);
    program.swap_out();
    const std::uint64_t before = program.engine->counters().waits;
    program.allocate(40 * kMiB);
    CHECK_EQUAL(program.make_all_resident(), 0U);
    CHECK_EQUAL(program.engine->counters().waits, before + 1);
}

TEST(pinned_memory_never_leaves) {
    const Card card(kWithData);
    {
        const Reservation own(card, 64 * kMiB);
        Program program(card, hashing(), 128 * kMiB);
        const std::uint64_t block = program.allocate(20 * kMiB), other = program.allocate(8 * kMiB);
        const std::uint64_t small_one = program.allocate(1000), id = program.create(kBytes);
        program.map(id, own.address, kBytes);
        Failure why;
        CHECK(program.engine->pin(block + 12 * kMiB, why));
        CHECK_EQUAL(program.engine->usage().pinned, 0U);  // not there yet
        CHECK_EQUAL(program.make_all_resident(), 0U);
        CHECK_EQUAL(program.engine->usage().pinned, 20 * kMiB);
        CHECK(program.engine->pin(own.address + kMiB, why));
        CHECK(program.engine->pin(small_one, why));
        CHECK(program.engine->pin(id, why));  // once more
        CHECK(!program.engine->pin(own.address + 20 * kMiB, why));
        CHECK_EQUAL(why.code, CUDA_ERROR_INVALID_VALUE);
        CHECK_EQUAL(program.engine->usage().pinned, 32 * kMiB);
        program.swap_out();
        const Usage usage = program.engine->usage();
        CHECK_EQUAL(usage.resident, 32 * kMiB);
        CHECK_EQUAL(usage.swapped + usage.unbacked, 8 * kMiB);
        CHECK(is_mapped(block) && is_mapped(own.address) && !is_mapped(other));
        check_whole(*program.engine);
        // The empty shared chunk stays for the next small block, which nobody has pinned.
        program.free(block);
        program.free(small_one);
        program.unmap(own.address, kBytes);
        program.release(id);
        CHECK_EQUAL(program.engine->usage().pinned, 0U);
        program.make_resident(program.allocate(1000), 1000);
        program.swap_out();
        CHECK_EQUAL(program.engine->usage().resident, 0U);
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}

TEST(memory_that_nobody_wrote_does_not_travel) {
    const Card card(kWithData);
    {
        const Reservation own(card, 64 * kMiB);
        Program program(card, hashing(), 200 * kMiB);
        const std::uint64_t block = program.allocate(64 * kMiB), id = program.create(32 * kMiB);
        const std::uint64_t before = program.allocate(8 * kMiB);  // not large enough
        program.map(id, own.address, 32 * kMiB);
        program.make_resident(before, 8 * kMiB);
        program.write(before, 8 * kMiB, 9);
        program.synchronize();
        program.free(before);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        CHECK_EQUAL(program.engine->counters().zeroed, 24U);
        program.write(block + 5 * kMiB, 4, 1);
        program.write(own.address + 31 * kMiB, 4, 2);
        program.synchronize();
        program.swap_out();
        Counters counters = program.engine->counters();
        CHECK_EQUAL(counters.copied_out_bytes, 8 * kMiB);
        CHECK_EQUAL(counters.zeros, 22U);
        CHECK_EQUAL(counters.zero_bytes, 88 * kMiB);
        CHECK_EQUAL(counters.host_used, 8 * kMiB);
        CHECK_EQUAL(program.engine->usage().unbacked, 88 * kMiB);
        CHECK_EQUAL(program.engine->usage().swapped, 8 * kMiB);
        CHECK_EQUAL(program.credits.bytes, 200 * kMiB);
        CHECK_EQUAL(program.make_all_resident(), 0U);
        CHECK_EQUAL(program.engine->counters().copied_in_bytes, 8 * kMiB);
        CHECK(Program::has(block + 5 * kMiB, 4, 1));
        CHECK(Program::has(own.address + 31 * kMiB, 4, 2));
        // What the program writes later travels, what was written and is zero again does not.
        program.write(block, 64 * kMiB, 3);
        program.write(own.address, 32 * kMiB, 0);
        program.synchronize();
        program.swap_out();
        counters = program.engine->counters();
        CHECK_EQUAL(counters.copied_out_bytes, 72 * kMiB);
        CHECK_EQUAL(counters.zeros, 30U);
        CHECK_EQUAL(counters.host_used, 64 * kMiB);
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}

// A program that writes zeros reads zeros, on whatever memory its chunk is by then.
TEST(zeros_that_a_program_wrote_stay_zeros) {
    const Card card(kWithData);
    {
        Program program(card, hashing(), 64 * kMiB);
        const std::uint64_t one = program.allocate(8 * kMiB), two = program.allocate(20 * kMiB);
        program.make_resident(one, 8 * kMiB);
        program.write(one, 8 * kMiB, 0);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.engine->usage().unbacked, 28 * kMiB);
        // Others leave something there. The simulated card has zeroed memory otherwise.
        for (int round = 0; round < 2; ++round) {
            CHECK_EQUAL(program.make_all_resident(), 0U);
            CHECK(Program::has(one, 8 * kMiB, 0));
            CHECK(Program::has(two, 20 * kMiB, 0));
            program.swap_out();
        }
        CHECK_EQUAL(program.engine->counters().copies_out, 0U);
        CHECK_EQUAL(card.calls("cuMemsetD8Async"), 5U + 2U + 5U + 2U + 3U);
    }
    check_order(card);
}

TEST(without_hashes_nothing_is_zeroed_and_everything_travels) {
    const Card card(kWithData);
    Program program(card, small(), 64 * kMiB);
    program.allocate(20 * kMiB);
    CHECK_EQUAL(program.make_all_resident(), 0U);
    CHECK_EQUAL(program.engine->counters().zeroed, 0U);
    program.swap_out();
    CHECK_EQUAL(program.engine->counters().copied_out_bytes, 20 * kMiB);
}

TEST(two_engines_of_a_process_do_not_disturb_each_other) {
    const Card card(kWithData);
    {
        const Reservation own(card, 32 * kMiB);
        Program one(card, small(), 64 * kMiB), two(card, small(), 64 * kMiB);
        const std::uint64_t first = one.create(4 * kMiB), second = two.create(4 * kMiB);
        one.map(first, own.address, 4 * kMiB);
        two.map(second, own.address + 4 * kMiB, 4 * kMiB);
        CHECK_EQUAL(one.make_all_resident() + two.make_all_resident(), 0U);
        one.write(own.address, 4 * kMiB, 1);
        two.write(own.address + 4 * kMiB, 4 * kMiB, 2);
        one.synchronize();
        two.synchronize();
        one.swap_out();
        CHECK(!one.engine->owns_mapping(own.address + 4 * kMiB));
        one.unmap(own.address + 4 * kMiB, 4 * kMiB);  // none of its own
        CHECK(Program::has(own.address + 4 * kMiB, 4 * kMiB, 2));
        CHECK_EQUAL(one.swap_in(), 0U);
        CHECK(Program::has(own.address, 4 * kMiB, 1));
    }
    check_order(card);
    check_nothing_left();
}

TEST(threads_may_map_and_unmap_while_chunks_move) {
    const Card card(kOrdered);
    {
        const Reservation own(card, 96 * kMiB);
        Program program(card, small(), 512 * kMiB);
        std::atomic<int> running{3};
        std::vector<std::thread> threads;
        for (unsigned number = 0; number < 3; ++number) {
            threads.emplace_back([&, number] {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                const std::uint64_t address = own.address + number * 32 * kMiB;
                for (int step = 0; step < testing::rounds(60, 1000); ++step) {
                    Failure why;
                    std::uint64_t freed = 0;  // the credits stay where they are
                    const std::uint64_t id = program.create(kBytes);
                    program.map(id, address, kBytes);
                    CHECK(program.engine->release(id, freed, why));
                    CHECK_EQUAL(program.engine->handle_at(address).value_or(0), id);
                    CHECK(program.engine->bytes_to_come() <= 512 * kMiB);
                    CHECK(program.engine->unmap(address, kBytes, freed, why));
                }
                --running;
            });
        }
        while (running > 0) {
            std::uint64_t missing = 0;
            Failure why;
            program.swap_out();
            program.credits.bytes = 512 * kMiB;
            CHECK(program.engine->make_all_resident(program.credits, missing, why));
            CHECK(program.engine->finish(why));
            check_whole(*program.engine);
        }
        for (std::thread& thread : threads) thread.join();
        CHECK_EQUAL(program.engine->counters().allocated, 0U);
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}
