// Extents on a small simulated card, with what a test holds of them; nothing may be left at the
// end.
#ifndef VRAMKIT_TESTS_NATIVE_EXTENTS_BENCH_H
#define VRAMKIT_TESTS_NATIVE_EXTENTS_BENCH_H

#include <algorithm>
#include <limits>

#include "gpu.h"
#include "pool/memory/extents.h"

using gpu::cu;
using gpu::sim;
using vramkit::Failure;
using vramkit::kPage;
using vramkit::pool::Addresses;
using vramkit::pool::Extent;
using vramkit::pool::Extents;

inline constexpr std::uint64_t kCard = 256 * kPage;
inline constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();
inline constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();

inline std::uint64_t free_on_card() {
    size_t free = 0, total = 0;
    CHECK_EQUAL(cu().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
}

inline void reset_card() {
    gpu::reset_round("checker=on,data=on,capacity=" + std::to_string(kCard));
    gpu::use_device();
}

// A fresh card with a reservation and extents, which must leave nothing behind.
class Bench {
  public:
    Bench() {
        reset_card();
        free_before_ = free_on_card();
        Failure why;
        addresses = Addresses::reserve(cu(), kCard, why);
        REQUIRE(addresses != nullptr);
        extents.emplace(cu(), 0, *addresses);
    }
    ~Bench() {
        sim().clear_faults();
        extents.reset();
        addresses.reset();
        CHECK_EQUAL(free_on_card(), free_before_);
        const std::string live = gpu::text_of(sim().live_objects);
        for (const char* kind : {"\"reservations\":0", "\"handles\":0", "\"mappings\":0"}) {
            if (!CHECK(live.find(kind) != std::string::npos)) std::fprintf(stderr, "%s\n", kind);
        }
        CHECK_EQUAL(gpu::text_of(sim().reports), std::string("[]"));
    }

    void well() { CHECK_EQUAL(extents->check(&held), std::string()); }

    // The test holds what it was handed until it gives it back.
    std::uint64_t hold(std::optional<Extent> extent) {
        REQUIRE(extent.has_value());
        held.push_back(*extent);
        return extent->address;
    }
    std::uint64_t create(std::uint64_t pages) {
        Failure why;
        return hold(extents->create(pages * kPage, why));
    }
    // Of one that the test holds: the pages it has on each handle.
    std::vector<std::uint64_t> pages_of(std::uint64_t address) {
        std::vector<std::uint64_t> pages;
        extents->each_part(*find(address),
                           [&](std::uint64_t bytes) { pages.push_back(bytes / kPage); });
        return pages;
    }
    void give(std::uint64_t address, std::int64_t now = 0) {
        const auto found = find(address);
        extents->give(*found, now);
        held.erase(found);
    }
    // Idle extents of these sizes, each a piece, with a page held between any two.
    std::vector<std::uint64_t> scatter(const std::vector<std::uint64_t>& pages) {
        std::vector<std::uint64_t> made;
        for (const std::uint64_t each : pages) {
            made.push_back(create(each));
            create(1);
        }
        for (std::size_t i = 0; i < made.size(); ++i) give(made[i], static_cast<std::int64_t>(i));
        return made;
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>> idle() const {  // address, pages
        std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
        extents->each_idle([&](const Extent& extent) {
            found.emplace_back(extent.address, extent.bytes / kPage);
        });
        return found;
    }

    std::unique_ptr<Addresses> addresses;
    std::optional<Extents> extents;
    std::vector<Extent> held;

  private:
    std::vector<Extent>::iterator find(std::uint64_t address) {
        const auto found = std::ranges::find(held, address, &Extent::address);
        REQUIRE(found != held.end());
        return found;
    }
    std::uint64_t free_before_ = 0;
};

inline void write(std::uint64_t address, std::uint64_t value) {
    CHECK_EQUAL(cu().cuMemcpyHtoD_v2(address, &value, sizeof value), CUDA_SUCCESS);
}

inline std::uint64_t read(std::uint64_t address) {
    std::uint64_t value = 0;
    CHECK_EQUAL(cu().cuMemcpyDtoH_v2(&value, address, sizeof value), CUDA_SUCCESS);
    return value;
}

#endif
