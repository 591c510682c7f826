// Host memory of swapped chunks.
#include <sys/mman.h>

#include <vector>

#include "swap/host_store.h"
#include "swap_bench.h"

using namespace swap_bench;
using swap::HostPiece;
using swap::HostStore;

namespace {

HostStore::Settings slabs(std::uint64_t mebibytes, unsigned threads = 0) {
    HostStore::Settings settings;
    settings.slab_bytes = mebibytes * kMiB;
    settings.threads = threads;
    return settings;
}

HostPiece take(HostStore& store, std::uint64_t bytes) {
    HostPiece piece;
    Failure why;
    if (!store.take(bytes, piece, why)) CHECK_EQUAL(why.message, "host memory");
    CHECK_EQUAL(piece.bytes, bytes);
    return piece;
}

bool is_populated(const HostPiece& piece) {
    std::vector<unsigned char> pages(piece.bytes / 4096);
    CHECK_EQUAL(::mincore(piece.data, piece.bytes, pages.data()), 0);
    for (const unsigned char page : pages) {
        if ((page & 1) == 0) return false;
    }
    return true;
}

}  // namespace

TEST(prepared_memory_is_populated_and_registered_once) {
    const Card card(kOrdered);
    for (const unsigned threads : {1U, 2U, 3U, 50U}) {
        HostStore store(card.call, slabs(16, threads));
        Failure why;
        gpu::sim().reset_call_counts();
        CHECK(store.prepare(40 * kMiB, why));
        CHECK_EQUAL(card.calls("cuMemHostRegister_v2"), 3U);
        CHECK_EQUAL(store.held(), 40 * kMiB);
        for (int piece = 0; piece < 5; ++piece) CHECK(is_populated(take(store, 8 * kMiB)));
        CHECK_EQUAL(card.calls("cuMemHostRegister_v2"), 3U);
        CHECK(store.prepare(0, why));
        CHECK_EQUAL(store.held(), 40 * kMiB);
    }
    check_nothing_left();
}

TEST(pieces_are_aligned_whole_and_used_again) {
    const Card card(kOrdered);
    HostStore store(card.call, slabs(16));
    HostPiece first = take(store, 12 * kMiB), second = take(store, 8 * kMiB);
    HostPiece third = take(store, 4 * kMiB);
    CHECK_EQUAL(reinterpret_cast<std::uint64_t>(first.data) % (2 * kMiB), 0U);
    CHECK_EQUAL(store.held(), 32 * kMiB);
    CHECK_EQUAL(store.used(), 24 * kMiB);
    CHECK(third.data == first.data + 12 * kMiB);  // best fit
    const std::byte* const before = second.data;
    store.give(second);
    CHECK(!second);
    CHECK(take(store, 16 * kMiB).data == before);
    // More than a slab has a slab of its own.
    take(store, 20 * kMiB);
    CHECK_EQUAL(store.held(), 52 * kMiB);
}

TEST(trimming_gives_back_what_nobody_uses) {
    const Card card(kOrdered);
    HostStore store(card.call, slabs(16));
    HostPiece first = take(store, 16 * kMiB), second = take(store, 16 * kMiB);
    store.give(first);
    store.trim();
    CHECK_EQUAL(store.held(), 16 * kMiB);
    first = take(store, 8 * kMiB);
    CHECK_EQUAL(store.held(), 32 * kMiB);
    store.give(second);
    store.give(first);
    CHECK_EQUAL(gpu::sim().inject("cuMemHostUnregister", 1, 1, CUDA_ERROR_UNKNOWN, 0), 0);
    store.trim();
    CHECK_EQUAL(store.held(), 16 * kMiB);  // the driver refused
    store.trim();
    CHECK_EQUAL(store.held(), 0U);
    CHECK_EQUAL(bench::figure(gpu::text_of(gpu::sim().live_objects), "registered"), 0U);
}

TEST(the_limit_is_kept) {
    const Card card(kOrdered);
    HostStore::Settings settings = slabs(16);
    settings.limit = 20 * kMiB;
    HostStore store(card.call, settings);
    Failure why;
    CHECK(!store.prepare(24 * kMiB, why));
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(why.message,
                "host memory for swapped data is limited to 20 MiB, of which 16 MiB are held; 8 "
                "MiB more are needed");
    // A smaller slab fits.
    take(store, 16 * kMiB);
    take(store, 2 * kMiB);
    take(store, 2 * kMiB);
    CHECK_EQUAL(store.held(), 20 * kMiB);
    HostPiece piece;
    CHECK(!store.take(2 * kMiB, piece, why));
    CHECK(!piece);
}

TEST(a_slab_takes_what_the_host_has_left_and_no_more) {
    const Card card(kOrdered);
    HostStore::Settings settings = slabs(16);
    std::uint64_t left = 0;
    settings.room = [&] {
        return swap::HostRoom{swap::kSparedOnHost + left, "the group of this test"};
    };
    HostStore store(card.call, settings);
    Failure why;
    left = 8 * kMiB - 1;
    HostPiece piece;
    CHECK(!store.take(8 * kMiB, piece, why));
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(why.message,
                "the host has 519 MiB left by the group of this test, of which 512 MiB are "
                "spared; swapped data needs 8 MiB more");
    left = 0;  // and less than is spared
    CHECK(!store.prepare(2 * kMiB, why));
    CHECK_EQUAL(store.held(), 0U);
    // A smaller slab fits, and what is held is not asked for again.
    left = 10 * kMiB;
    piece = take(store, 8 * kMiB);
    CHECK_EQUAL(store.held(), 10 * kMiB);
    left = 0;
    take(store, 2 * kMiB);
    store.give(piece);
    take(store, 8 * kMiB);
    CHECK(!store.take(2 * kMiB, piece, why));
    left = 100 * kMiB;
    CHECK(store.prepare(32 * kMiB, why));
    CHECK_EQUAL(store.held(), 42 * kMiB);
}

TEST(memory_that_the_system_does_not_have_is_no_crash) {
    const Card card(kOrdered);
    HostStore::Settings settings = slabs(16);
    settings.room = [] { return swap::HostRoom{~std::uint64_t{0}, "no limit"}; };
    HostStore store(card.call, settings);
    HostPiece piece;
    Failure why;
    CHECK(!store.take(std::uint64_t{1} << 50, piece, why));
    CHECK(why.kind == Failure::Kind::out_of_memory);
    CHECK_EQUAL(store.held(), 0U);
}
