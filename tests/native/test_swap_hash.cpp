// The hash of chunks: its quality, and chunks that go without a copy.
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "swap/hash.h"
#include "swap_bench.h"

using namespace swap_bench;
using swap::Hash;

namespace {

using Words = std::vector<std::uint64_t>;

Hash hash(const Words& words) { return swap::hash_of(std::as_bytes(std::span(words))); }

// Data of the kinds that memory has: zeros, small numbers, equal floats, noise.
std::vector<Words> samples() {
    std::mt19937_64 random(1);
    std::vector<Words> made(4, Words(256));
    for (std::size_t word = 0; word < 256; ++word) {
        made[1][word] = word;
        made[2][word] = 0x3f8000003f800000;
        made[3][word] = random();
    }
    return made;
}

}  // namespace

TEST(every_flipped_bit_changes_both_sums) {
    for (Words words : samples()) {
        const Hash before = hash(words);
        for (std::size_t word = 0; word < words.size(); word += 5) {
            for (int bit = 0; bit < 64; ++bit) {
                words[word] ^= std::uint64_t{1} << bit;
                CHECK(hash(words).a != before.a);
                CHECK(hash(words).b != before.b);
                words[word] ^= std::uint64_t{1} << bit;
            }
        }
    }
}

TEST(a_flipped_bit_flips_half_of_each_sum) {
    std::mt19937_64 random(2);
    constexpr int rounds = 400;
    for (int bit = 0; bit < 64; ++bit) {
        std::array<int, 64> a{}, b{};
        for (int round = 0; round < rounds; ++round) {
            const std::uint64_t word = random(), other = word ^ std::uint64_t{1} << bit;
            const std::uint64_t in_a = swap::mix_a(word) ^ swap::mix_a(other);
            const std::uint64_t in_b = swap::mix_b(word) ^ swap::mix_b(other);
            for (std::size_t out = 0; out < 64; ++out) {
                a[out] += in_a >> out & 1;
                b[out] += in_b >> out & 1;
            }
        }
        // 200 of 400 with a deviation of 10: six of them, with 8,192 tries.
        for (std::size_t out = 0; out < 64; ++out) {
            CHECK(std::abs(a[out] - rounds / 2) < 60);
            CHECK(std::abs(b[out] - rounds / 2) < 60);
        }
    }
}

TEST(words_that_change_places_are_noticed) {
    for (const Words& words : {samples()[1], samples()[3]}) {
        std::set<std::uint64_t> a{hash(words).a}, b{hash(words).b};
        std::size_t tried = 1;
        for (std::size_t one = 0; one < 256; one += 7) {
            for (std::size_t other = one + 1; other < 256; other += 11) {
                Words changed = words;
                std::swap(changed[one], changed[other]);
                a.insert(hash(changed).a);
                b.insert(hash(changed).b);
                ++tried;
            }
        }
        CHECK_EQUAL(a.size(), tried);
        CHECK_EQUAL(b.size(), tried);
    }
}

TEST(data_that_is_shifted_rotated_or_negated_is_noticed) {
    for (const Words& words : {samples()[1], samples()[3]}) {
        std::set<std::uint64_t> a, b;
        std::size_t tried = 0;
        const auto add = [&](const Words& changed) {
            a.insert(hash(changed).a);
            b.insert(hash(changed).b);
            ++tried;
        };
        add(words);
        for (int by = 1; by < 200; ++by) {
            Words rotated = words;
            std::rotate(rotated.begin(), rotated.begin() + by, rotated.end());
            add(rotated);
        }
        // By bytes: all words are new.
        for (std::size_t by = 1; by < 8; ++by) {
            Words shifted = words;
            std::memmove(reinterpret_cast<std::byte*>(shifted.data()) + by, words.data(),
                         words.size() * 8 - by);
            add(shifted);
        }
        // The signs of two numbers anywhere, as of two weights.
        for (std::size_t one = 0; one < 256; one += 9) {
            for (std::size_t other = one + 1; other < 256; other += 13) {
                Words negated = words;
                negated[one] ^= std::uint64_t{1} << 63;
                negated[other] ^= std::uint64_t{1} << 63;
                add(negated);
            }
        }
        CHECK_EQUAL(a.size(), tried);
        CHECK_EQUAL(b.size(), tried);
    }
}

TEST(more_or_fewer_zeros_are_noticed) {
    std::set<std::uint64_t> a, b;
    for (std::size_t count = 0; count < 1000; ++count) {
        a.insert(hash(Words(count)).a);
        b.insert(hash(Words(count)).b);
    }
    CHECK_EQUAL(a.size(), 1000U);
    CHECK_EQUAL(b.size(), 1000U);
}

TEST(short_words_never_collide_in_pairs) {
    // All pairs of two small words: 2^16 inputs, and no two sums are the same.
    std::set<std::uint64_t> a, b;
    for (std::uint64_t one = 0; one < 256; ++one) {
        for (std::uint64_t other = 0; other < 256; ++other) {
            a.insert(hash({one, other}).a);
            b.insert(hash({one, other}).b);
        }
    }
    CHECK_EQUAL(a.size(), 65536U);
    CHECK_EQUAL(b.size(), 65536U);
}

TEST(chunks_that_did_not_change_go_without_a_copy) {
    const Card card(kWithData);
    {
        Program program(card, hashing(), 128 * kMiB);
        const std::uint64_t block = program.allocate(32 * kMiB);
        program.make_resident(0, kEverything);
        program.write(block, 32 * kMiB, 5);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.engine->counters().copies_out, 8U);
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK_EQUAL(program.engine->counters().host_used, 32 * kMiB);
        // One word of the third chunk changes; the fifth is written with what it had.
        program.write(block + 9 * kMiB, 4, 6);
        program.write(block + 16 * kMiB, 4 * kMiB, 5);
        program.synchronize();
        program.swap_out();
        const Counters counters = program.engine->counters();
        CHECK_EQUAL(counters.copies_out, 9U);
        CHECK_EQUAL(counters.dropped, 7U);
        CHECK_EQUAL(counters.dropped_bytes, 28 * kMiB);
        CHECK_EQUAL(counters.hashed, 16U);
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK(Program::has(block, 9 * kMiB, 5));
        CHECK(Program::has(block + 9 * kMiB, 4, 6));
        CHECK(Program::has(block + 9 * kMiB + 4, 23 * kMiB - 4, 5));
        check_whole(*program.engine);
    }
    check_order(card);
    check_nothing_left();
}

TEST(copies_of_resident_chunks_give_way_to_chunks_that_leave) {
    const Card card(kWithData);
    {
        Settings settings = hashing();
        settings.host.limit = 16 * kMiB;
        Program program(card, settings, 128 * kMiB);
        // What comes later lies before it, and leaves first.
        const std::uint64_t before = program.allocate(16 * kMiB);
        const std::uint64_t one = program.allocate(16 * kMiB);
        program.free(before);
        program.make_resident(0, kEverything);
        program.write(one, 16 * kMiB, 1);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK_EQUAL(program.engine->counters().host_used, 16 * kMiB);
        const std::uint64_t two = program.allocate(16 * kMiB);
        CHECK_EQUAL(two, before);
        program.make_resident(two, 16 * kMiB);
        program.write(two, 16 * kMiB, 2);
        program.write(one, 16 * kMiB, 1);
        program.synchronize();
        program.swap_out(16 * kMiB);
        CHECK_EQUAL(program.engine->usage().swapped, 16 * kMiB);
        CHECK_EQUAL(program.engine->counters().host_bytes, 16 * kMiB);
        CHECK(gpu::sim().host_alias(two) == nullptr);
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK(Program::has(one, 16 * kMiB, 1));
        CHECK(Program::has(two, 16 * kMiB, 2));
    }
    check_order(card);
    check_nothing_left();
}

TEST(more_chunks_than_a_batch_are_hashed) {
    const Card card("checker=on,data=off,capacity=2GiB");
    Settings settings = hashing();
    settings.chunk_bytes = 2 * kMiB;
    settings.host.slab_bytes = 256 * kMiB;
    Program program(card, settings, 1500 * kMiB);
    program.allocate(600 * kMiB);
    program.make_resident(0, kEverything);
    program.swap_out();
    CHECK_EQUAL(program.engine->counters().hashed, 300U);
    CHECK_EQUAL(program.engine->counters().copies_out, 300U);
}

TEST(a_hash_that_fails_only_costs_a_copy) {
    const Card card(kWithData);
    for (const char* call : {"cuLaunchKernel", "cuMemsetD8Async", "cuStreamSynchronize"}) {
        Program program(card, hashing(), 64 * kMiB);
        const std::uint64_t block = program.allocate(8 * kMiB);
        program.make_resident(0, kEverything);
        program.write(block, 8 * kMiB, 5);
        program.synchronize();
        program.swap_out();
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK_EQUAL(gpu::sim().inject(call, 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
        program.swap_out();
        gpu::sim().clear_faults();
        CHECK_EQUAL(program.engine->counters().copies_out, 4U);
        CHECK_EQUAL(program.engine->counters().dropped, 0U);
        CHECK_EQUAL(program.swap_in(), 0U);
        CHECK(Program::has(block, 8 * kMiB, 5));
    }
    check_order(card);
}
