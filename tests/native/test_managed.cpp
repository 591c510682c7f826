// Managed memory of the simulated card: what moves, when, and how long it takes, in round figures.
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>

#include "gpu.h"

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kFaultBytes = 64 * 1024;
// Bytes a nanosecond.
constexpr double kFaults = 1;
constexpr double kPopulate = 8;
constexpr double kPrefetch = 3;
constexpr double kKernel = 10;

std::string profile(const char* evicts) {
    static const gpu::Folder folder;
    const gpu::fs::path file = folder.path / (std::string("managed-") + evicts + ".toml");
    std::ofstream(file) << gpu::kRoundProfile << R"([managed]
fault_bytes = 65_536
fault_ns = 131_072
faults_at_once = 2
populate_bytes_per_s = 8e9
prefetch_bytes_per_s = 3e9
prefetch_evicts = )" << evicts
                        << "\n";
    return file.string();
}

template <class Function>
Function* call(const char* symbol) {
    auto* const found = reinterpret_cast<Function*>(gpu::driver().symbol(symbol));
    REQUIRE(found != nullptr);
    return found;
}

// Simulated times, to a hundredth of a nanosecond.
void check_near(double seen, double expected) {
    if (std::abs(seen - expected) > 0.01) CHECK_EQUAL(seen, expected);
}

double bytes_of(std::uint64_t bytes) { return static_cast<double>(bytes); }

// A card of 16 MiB, and what a program does with managed memory on it.
class Card {
  public:
    explicit Card(const std::string& more = "data=off", const char* evicts = "1") {
        gpu::reset("profile=" + profile(evicts) + ",capacity=16MiB," + more);
        gpu::use_device();
        stream = gpu::make_stream();
        fill_ = gpu::kernel("vk_fill");
        checksum_ = gpu::kernel("vk_checksum");
    }

    static CUdeviceptr managed(std::uint64_t bytes) {
        CUdeviceptr pointer = 0;
        CHECK_EQUAL(call<CUresult(CUdeviceptr*, size_t, unsigned)>("cuMemAllocManaged")(
                        &pointer, bytes, CU_MEM_ATTACH_GLOBAL),
                    CUDA_SUCCESS);
        return pointer;
    }
    // Managed memory that the host has written.
    CUdeviceptr on_host(std::uint64_t bytes) const {
        const CUdeviceptr pointer = managed(bytes);
        host(pointer, bytes, true);
        return pointer;
    }
    static void host(CUdeviceptr pointer, std::uint64_t bytes, bool write) {
        call<void(const void*, size_t, int)>("simHostAccess")(reinterpret_cast<void*>(pointer),
                                                              bytes, write);
    }
    void write(CUdeviceptr pointer, std::uint64_t bytes) const {
        std::uint64_t words = bytes / 4;
        std::uint32_t value = 7;
        void* parameters[] = {&pointer, &words, &value};
        launch(fill_, parameters);
    }
    void read(CUdeviceptr pointer, std::uint64_t bytes, CUdeviceptr result) const {
        std::uint64_t words = bytes / 4;
        void* parameters[] = {&pointer, &words, &result};
        launch(checksum_, parameters);
    }
    CUresult prefetch(CUdeviceptr pointer, std::uint64_t bytes, int place) const {
        return call<CUresult(CUdeviceptr, size_t, CUdevice, CUstream)>("cuMemPrefetchAsync")(
            pointer, bytes, place, stream);
    }
    static void advise(CUdeviceptr pointer, std::uint64_t bytes, CUmem_advise advice, int place) {
        CHECK_EQUAL(call<CUresult(CUdeviceptr, size_t, CUmem_advise, CUdevice)>("cuMemAdvise")(
                        pointer, bytes, advice, place),
                    CUDA_SUCCESS);
    }
    // Simulated time until what the body issues is done.
    template <class Body>
    double time(Body body) const {
        const double begin = gpu::sim().now();
        body();
        CHECK_EQUAL(gpu::cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
        return gpu::sim().now() - begin;
    }
    double write_time(CUdeviceptr pointer, std::uint64_t bytes) const {
        return time([&] { write(pointer, bytes); });
    }
    static std::uint64_t used() {
        size_t free = 0, total = 0;
        CHECK_EQUAL(gpu::cu().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
        return total - free;
    }

    CUstream stream = nullptr;

  private:
    void launch(CUfunction function, void** parameters) const {
        CHECK_EQUAL(gpu::cu().cuLaunchKernel(function, gpu::kMultiprocessors, 1, 1, gpu::kThreads,
                                             1, 1, 0, stream, parameters, nullptr),
                    CUDA_SUCCESS);
    }

    CUfunction fill_ = nullptr, checksum_ = nullptr;
};

double kernel_time(std::uint64_t bytes) { return gpu::kLaunchLatency + bytes_of(bytes) / kKernel; }

}  // namespace

TEST(first_touch_makes_pages_on_the_card_without_a_transfer) {
    const Card card;
    const CUdeviceptr pages = Card::managed(8 * kMiB);
    CHECK_EQUAL(Card::used(), 0U);
    check_near(card.write_time(pages, 8 * kMiB),
               bytes_of(8 * kMiB) / kPopulate + kernel_time(8 * kMiB));
    CHECK_EQUAL(Card::used(), 8 * kMiB);
    check_near(card.write_time(pages, 8 * kMiB), kernel_time(8 * kMiB));
}

TEST(pages_on_the_host_come_by_faults_before_a_kernel_runs) {
    const Card card;
    const CUdeviceptr pages = card.on_host(8 * kMiB);
    check_near(card.write_time(pages, 8 * kMiB),
               bytes_of(8 * kMiB) / kFaults + kernel_time(8 * kMiB));
    check_near(card.write_time(pages, 8 * kMiB), kernel_time(8 * kMiB));
}

TEST(a_fault_brings_the_pages_around_it_too) {
    const Card card;
    const CUdeviceptr pages = card.on_host(8 * kMiB);
    const double one = bytes_of(kFaultBytes) / kFaults;
    check_near(card.write_time(pages + kMiB, 4096), one + kernel_time(4096));
    CHECK_EQUAL(Card::used(), kFaultBytes);
    check_near(card.write_time(pages + kMiB + 4096, 4096), kernel_time(4096));
    check_near(card.write_time(pages + kMiB - 4096, 8192), one + kernel_time(8192));
    CHECK_EQUAL(Card::used(), 2 * kFaultBytes);
}

TEST(a_prefetch_brings_pages_in_bulk) {
    const Card card;
    const CUdeviceptr pages = card.on_host(8 * kMiB);
    check_near(card.time([&] { CHECK_EQUAL(card.prefetch(pages, 8 * kMiB, 0), CUDA_SUCCESS); }),
               bytes_of(8 * kMiB) / kPrefetch + gpu::kCopyLatency);
    check_near(card.write_time(pages, 8 * kMiB), kernel_time(8 * kMiB));
    // The link is slower than prefetches are on the way back.
    check_near(card.time([&] {
        CHECK_EQUAL(card.prefetch(pages, 8 * kMiB, VRAMKIT_DEVICE_CPU), CUDA_SUCCESS);
    }),
               bytes_of(8 * kMiB) / gpu::kToHost + gpu::kCopyLatency);
    CHECK_EQUAL(Card::used(), 0U);
}

TEST(a_prefetch_shares_the_link_with_copies) {
    const Card card;
    const CUdeviceptr pages = card.on_host(4 * kMiB);
    const CUdeviceptr plain = gpu::make_memory(4 * kMiB);
    void* const pinned = gpu::make_pinned(4 * kMiB);
    const CUstream other = gpu::make_stream();
    // Both ways are busy to the end: 1 byte a nanosecond each. The copy's latency comes first, and
    // the prefetch has the link to itself for that long.
    const double alone = gpu::kCopyLatency * kPrefetch;
    check_near(card.time([&] {
        CHECK_EQUAL(gpu::cu().cuMemcpyDtoHAsync_v2(pinned, plain, 4 * kMiB, other), CUDA_SUCCESS);
        CHECK_EQUAL(card.prefetch(pages, 4 * kMiB, 0), CUDA_SUCCESS);
    }),
               gpu::kCopyLatency + (bytes_of(4 * kMiB) - alone) / gpu::kDuplex + gpu::kCopyLatency);
    CHECK_EQUAL(gpu::cu().cuStreamSynchronize(other), CUDA_SUCCESS);
}

TEST(a_full_card_evicts_what_was_used_least_recently) {
    const Card card;
    const CUdeviceptr a = Card::managed(8 * kMiB), b = Card::managed(8 * kMiB);
    const CUdeviceptr c = Card::managed(8 * kMiB);
    for (const CUdeviceptr each : {a, b, a}) card.write_time(each, 8 * kMiB);
    CHECK_EQUAL(Card::used(), 16 * kMiB);
    // Nothing of c exists yet, so that b leaves while c is populated; the way out is the longer.
    check_near(card.write_time(c, 8 * kMiB),
               bytes_of(8 * kMiB) / gpu::kToHost + kernel_time(8 * kMiB));
    check_near(card.write_time(a, 8 * kMiB), kernel_time(8 * kMiB));
    // b comes by faults, while c goes at their pace.
    check_near(card.write_time(b, 8 * kMiB), bytes_of(8 * kMiB) / kFaults + kernel_time(8 * kMiB));
    CHECK_EQUAL(Card::used(), 16 * kMiB);
}

TEST(a_sweep_over_more_than_the_card_brings_everything_again_each_time) {
    const Card card;
    const CUdeviceptr pages = card.on_host(20 * kMiB);
    for (int pass = 0; pass < 3; ++pass) {
        check_near(card.write_time(pages, 20 * kMiB),
                   bytes_of(20 * kMiB) / kFaults + kernel_time(20 * kMiB));
    }
}

TEST(memory_that_is_not_managed_takes_the_room_of_pages) {
    const Card card;
    const CUdeviceptr pages = Card::managed(16 * kMiB);
    card.write_time(pages, 16 * kMiB);
    const double begin = gpu::sim().now();
    const CUdeviceptr plain = gpu::make_memory(6 * kMiB);
    check_near(gpu::sim().now() - begin, bytes_of(6 * kMiB) / gpu::kToHost);
    CHECK_EQUAL(Card::used(), 16 * kMiB);
    // The rest of the card is too small now: the whole sweep comes in again.
    check_near(card.write_time(pages, 16 * kMiB),
               bytes_of(16 * kMiB) / kFaults + kernel_time(16 * kMiB));
    CHECK_EQUAL(gpu::cu().cuMemFree_v2(plain), CUDA_SUCCESS);
    CHECK_EQUAL(Card::used(), 10 * kMiB);
    CHECK_EQUAL(gpu::cu().cuMemFree_v2(pages), CUDA_SUCCESS);
    CHECK_EQUAL(Card::used(), 0U);
}

TEST(pages_that_find_no_room_are_used_over_the_link) {
    const Card card;
    gpu::make_memory(16 * kMiB);
    const CUdeviceptr pages = card.on_host(8 * kMiB);
    for (int pass = 0; pass < 2; ++pass) {
        check_near(card.write_time(pages, 8 * kMiB),
                   bytes_of(8 * kMiB) / gpu::kToHost + kernel_time(8 * kMiB));
    }
}

TEST(a_prefetch_to_a_full_card_evicts_others_as_documented) {
    const Card card;
    const CUdeviceptr a = Card::managed(16 * kMiB), b = card.on_host(8 * kMiB);
    card.write_time(a, 16 * kMiB);
    // 8 MiB each way at the same time.
    check_near(card.time([&] { CHECK_EQUAL(card.prefetch(b, 8 * kMiB, 0), CUDA_SUCCESS); }),
               bytes_of(8 * kMiB) / gpu::kDuplex + gpu::kCopyLatency);
    check_near(card.write_time(b, 8 * kMiB), kernel_time(8 * kMiB));
    CHECK_EQUAL(Card::used(), 16 * kMiB);
}

TEST(a_prefetch_to_a_full_card_does_nothing_where_the_profile_says_so) {
    const Card card("data=off", "0");
    const CUdeviceptr a = Card::managed(16 * kMiB), b = card.on_host(8 * kMiB);
    card.write_time(a, 16 * kMiB);
    check_near(card.time([&] { CHECK_EQUAL(card.prefetch(b, 8 * kMiB, 0), CUDA_SUCCESS); }),
               gpu::kCopyLatency);
    check_near(card.write_time(b, 8 * kMiB), bytes_of(8 * kMiB) / kFaults + kernel_time(8 * kMiB));
}

TEST(a_prefetch_larger_than_the_card_ends_where_it_is_full) {
    const Card card;
    const CUdeviceptr other = Card::managed(4 * kMiB), pages = card.on_host(24 * kMiB);
    card.write_time(other, 4 * kMiB);
    // The other allocation's pages leave, and none of its own.
    const double both_ways = bytes_of(4 * kMiB) / gpu::kDuplex;
    check_near(card.time([&] { CHECK_EQUAL(card.prefetch(pages, 24 * kMiB, 0), CUDA_SUCCESS); }),
               both_ways + bytes_of(12 * kMiB) / kPrefetch + gpu::kCopyLatency);
    CHECK_EQUAL(Card::used(), 16 * kMiB);
    check_near(card.write_time(pages, 16 * kMiB), kernel_time(16 * kMiB));
}

TEST(what_is_mostly_read_leaves_the_card_without_a_transfer) {
    const Card card;
    const CUdeviceptr pages = card.on_host(8 * kMiB), result = gpu::make_memory(2 * kMiB);
    Card::advise(pages, 8 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
    card.time([&] { card.read(pages, 8 * kMiB, result); });
    const CUdeviceptr other = Card::managed(12 * kMiB);
    check_near(card.write_time(other, 12 * kMiB),
               bytes_of(12 * kMiB) / kPopulate + kernel_time(12 * kMiB));
    // Once written, there is one copy, which has to be brought out.
    card.write_time(pages, 8 * kMiB);
    check_near(card.write_time(other, 12 * kMiB),
               bytes_of(12 * kMiB) / kFaults + kernel_time(12 * kMiB));
}

TEST(what_is_preferred_on_the_host_stays_there) {
    const Card card;
    const CUdeviceptr pages = card.on_host(8 * kMiB), result = gpu::make_memory(2 * kMiB);
    Card::advise(pages, 8 * kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, VRAMKIT_DEVICE_CPU);
    for (int pass = 0; pass < 2; ++pass) {
        check_near(card.time([&] { card.read(pages, 8 * kMiB, result); }),
                   bytes_of(8 * kMiB) / gpu::kToDevice + kernel_time(8 * kMiB));
    }
    CHECK_EQUAL(Card::used(), 2 * kMiB);
}

TEST(an_access_of_the_host_takes_pages_from_the_card) {
    const Card card;
    const CUdeviceptr pages = Card::managed(8 * kMiB);
    card.write_time(pages, 8 * kMiB);
    check_near(card.time([&] { Card::host(pages, 2 * kMiB, false); }),
               bytes_of(2 * kMiB) / kFaults);
    CHECK_EQUAL(Card::used(), 6 * kMiB);
    check_near(card.time([&] { Card::host(pages, 2 * kMiB, true); }), 0);
}

TEST(the_host_reads_and_writes_at_the_same_address) {
    const Card card("data=on");
    const CUdeviceptr pages = Card::managed(kMiB);
    card.write_time(pages, kMiB);
    auto* const words = reinterpret_cast<std::uint32_t*>(pages);
    Card::host(pages, kMiB, true);
    CHECK_EQUAL(words[kMiB / 4 - 1], 7U);
    words[0] = 3;
    std::uint32_t back = 0;
    CHECK_EQUAL(gpu::cu().cuMemcpyDtoH_v2(&back, pages, sizeof back), CUDA_SUCCESS);
    CHECK_EQUAL(back, 3U);
    CHECK_EQUAL(gpu::cu().cuMemFree_v2(pages), CUDA_SUCCESS);
    CHECK_EQUAL(gpu::text_of(gpu::sim().reports), "[]");
}

TEST(a_host_access_needs_the_order_that_any_access_needs) {
    const Card card;
    const CUdeviceptr pages = Card::managed(kMiB);
    card.write(pages, kMiB);
    Card::host(pages, kMiB, false);
    CHECK(gpu::text_of(gpu::sim().reports).find("\"race\"") != std::string::npos);
}

TEST(a_prefetch_is_no_access) {
    const Card card;
    const CUdeviceptr pages = card.on_host(kMiB);
    CHECK_EQUAL(card.prefetch(pages, kMiB, 0), CUDA_SUCCESS);
    Card::host(pages, kMiB, true);
    CHECK_EQUAL(gpu::text_of(gpu::sim().reports), "[]");
    CHECK_EQUAL(gpu::cu().cuStreamSynchronize(card.stream), CUDA_SUCCESS);
}

TEST(copies_and_sets_work_on_managed_memory) {
    const Card card;
    const CUdeviceptr pages = card.on_host(8 * kMiB);
    check_near(
        card.time([&] {
            CHECK_EQUAL(gpu::cu().cuMemsetD8Async(pages, 1, 8 * kMiB, card.stream), CUDA_SUCCESS);
        }),
        bytes_of(8 * kMiB) / kPrefetch + gpu::kLaunchLatency + bytes_of(8 * kMiB) / gpu::kSet);
    CHECK_EQUAL(Card::used(), 8 * kMiB);
}

TEST(many_gigabytes_cost_no_more_to_keep_than_a_few) {
    gpu::reset("profile=memory-sharing,data=off,checker=off,capacity=12GiB");
    gpu::use_device();
    const CUstream stream = gpu::make_stream();
    const CUdeviceptr pages = Card::managed(12 * 1024 * kMiB);
    Card::host(pages, 12 * 1024 * kMiB, true);
    const double begin = gpu::sim().now();
    CHECK_EQUAL(gpu::cu().cuMemsetD8Async(pages, 1, 12 * 1024 * kMiB, stream), CUDA_SUCCESS);
    CHECK_EQUAL(gpu::cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK((gpu::sim().now() - begin) * 1e-9 > 0.805);
}

TEST(a_card_without_rates_has_no_managed_memory) {
    gpu::reset_round();
    gpu::use_device();
    CUdeviceptr pointer = 0;
    CHECK_EQUAL(
        call<CUresult(CUdeviceptr*, size_t, unsigned)>("cuMemAllocManaged")(&pointer, kMiB, 1),
        CUDA_ERROR_NOT_SUPPORTED);
    int value = -1;
    CHECK_EQUAL(gpu::cu().cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0),
                CUDA_SUCCESS);
    CHECK_EQUAL(value, 0);
}
