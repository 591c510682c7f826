// Pieces on a small simulated card; nothing may be left at the end.
#ifndef VRAMKIT_TESTS_NATIVE_PIECES_BENCH_H
#define VRAMKIT_TESTS_NATIVE_PIECES_BENCH_H

#include <algorithm>
#include <optional>
#include <vector>

#include "gpu.h"
#include "pool/memory/pieces.h"

namespace pieces {

using gpu::cu;
using gpu::sim;
using namespace vramkit::pool;
using vramkit::Failure;
using vramkit::kPage;

inline constexpr std::uint64_t kCard = 256 * kPage;
inline constexpr std::size_t kEvery = kEveryMapping;

inline std::uint64_t free_on_card() {
    size_t free = 0, total = 0;
    CHECK_EQUAL(cu().cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
    return free;
}

inline void reset_card() {
    gpu::reset_round("checker=on,data=on,capacity=" + std::to_string(kCard));
    gpu::use_device();
}

inline std::string calls() { return gpu::text_of(sim().call_counts); }

inline void check_nothing_left() {
    const std::string live = gpu::text_of(sim().live_objects);
    for (const char* kind : {"\"reservations\":0", "\"handles\":0", "\"mappings\":0"}) {
        if (!CHECK(live.find(kind) != std::string::npos)) std::fprintf(stderr, "%s\n", kind);
    }
    CHECK_EQUAL(gpu::text_of(sim().reports), std::string("[]"));
}

inline void write(std::uint64_t address, std::uint64_t value) {
    CHECK_EQUAL(cu().cuMemcpyHtoD_v2(address, &value, sizeof value), CUDA_SUCCESS);
}

inline std::uint64_t read(std::uint64_t address) {
    std::uint64_t value = 0;
    CHECK_EQUAL(cu().cuMemcpyDtoH_v2(&value, address, sizeof value), CUDA_SUCCESS);
    return value;
}

// A fresh card with a reservation and pieces.
class Bench {
  public:
    Bench() {
        reset_card();
        free_before_ = free_on_card();
        Failure why;
        addresses = Addresses::reserve(cu(), kCard, why);
        REQUIRE(addresses != nullptr);
        pieces.emplace(cu(), 0, *addresses);
    }
    ~Bench() {
        sim().clear_faults();
        pieces.reset();
        addresses.reset();
        CHECK_EQUAL(free_on_card(), free_before_);
        check_nothing_left();
    }

    // Each piece is an extent of its own here: what is mapped is what is used.
    std::vector<Extent> all() const {
        std::vector<Extent> extents;
        pieces->each([&](const Extent& extent) { extents.push_back(extent); });
        return extents;
    }
    void well() const { CHECK_EQUAL(pieces->check(all()), std::string()); }

    // New memory at the lowest addresses, in pieces of `most` pages.
    std::uint64_t create(std::uint64_t pages, std::uint64_t most = 64) {
        const std::uint64_t address = addresses->take(pages * kPage);
        Failure why;
        REQUIRE(pieces->map(address, {}, pages * kPage, most * kPage, why));
        return address;
    }
    // Pieces that are wholly inside.
    std::vector<Mapping> whole(std::uint64_t address, std::uint64_t pages) const {
        std::vector<Mapping> found;
        pieces->each_whole({address, pages * kPage}, [&](const Mapping& mapping, std::int64_t) {
            found.push_back(mapping);
            return true;
        });
        return found;
    }
    std::vector<std::uint64_t> pages_of(std::uint64_t address, std::uint64_t pages) const {
        std::vector<std::uint64_t> sizes;
        for (const Mapping& each : whole(address, pages)) sizes.push_back(each.piece.bytes / kPage);
        return sizes;
    }
    std::vector<std::int64_t> since(std::uint64_t address, std::uint64_t pages) const {
        std::vector<std::int64_t> times;
        pieces->each_whole({address, pages * kPage}, [&](const Mapping&, std::int64_t time) {
            times.push_back(time);
            return true;
        });
        return times;
    }

    std::unique_ptr<Addresses> addresses;
    std::optional<Pieces> pieces;

  private:
    std::uint64_t free_before_ = 0;
};

}  // namespace pieces

#endif
