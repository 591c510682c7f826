// A long random sequence on the extents, every step beside a reference too simple to be wrong.
#include <map>
#include <random>
#include <tuple>

#include "extents_bench.h"

namespace {

// Idle pieces by address, and extents as the runs they form: what Extents must amount to.
class Reference {
  public:
    struct Entry {
        Piece piece;
        std::int64_t since;
    };
    struct Run {
        std::vector<Place> places;
        std::uint64_t bytes = 0;
        std::int64_t since = 0;
    };

    void give(const Extent& extent, std::int64_t now) {
        extent.each_place([&](const Place& place) { idle[place.address] = {place.piece, now}; });
        for (const Run& run : runs()) {
            if (extent.address - run.places[0].address >= run.bytes) continue;
            for (const Place& place : run.places) idle[place.address].since = run.since;
        }
    }
    void remove(const Extent& extent) {
        extent.each_place([&](const Place& place) { idle.erase(place.address); });
    }
    void remove_handles(const std::vector<Piece>& pieces) {
        for (const Piece& piece : pieces) {
            std::erase_if(
                idle, [&](const auto& entry) { return entry.second.piece.handle == piece.handle; });
        }
    }
    std::vector<Run> runs() const {
        std::vector<Run> found;
        std::uint64_t end = 0;
        for (const auto& [address, entry] : idle) {
            if (address != end) found.emplace_back().since = entry.since;
            Run& run = found.back();
            run.places.push_back({address, entry.piece});
            run.bytes += entry.piece.bytes;
            run.since = std::max(run.since, entry.since);
            end = address + entry.piece.bytes;
        }
        return found;
    }
    // Address and bytes of what take must give; zeros where nothing fits.
    std::pair<std::uint64_t, std::uint64_t> best(std::uint64_t least, std::uint64_t most) const {
        std::tuple<std::uint64_t, std::uint64_t, std::uint64_t> best{kEver, 0, 0};
        for (const Run& run : runs()) {
            for (std::size_t first = 0; first < run.places.size(); ++first) {
                std::uint64_t sum = 0;
                for (std::size_t last = first; last < run.places.size(); ++last) {
                    sum += run.places[last].piece.bytes;
                    if (sum < least || sum > most) continue;
                    best = std::min(best, {sum, run.bytes - sum, run.places[first].address});
                }
            }
        }
        const auto [sum, rest, address] = best;
        return sum == kEver ? std::pair{std::uint64_t{0}, std::uint64_t{0}}
                            : std::pair{address, sum};
    }
    std::uint64_t release(std::uint64_t bytes, std::int64_t idle_before) {
        std::vector<Run> oldest = runs();
        std::ranges::stable_sort(oldest, {}, &Run::since);
        std::uint64_t gone = 0;
        for (const Run& run : oldest) {
            for (const Place& place : run.places) {
                if (run.since >= idle_before || gone >= bytes) return gone;
                gone += place.piece.bytes;
                idle.erase(place.address);
            }
        }
        return gone;
    }
    std::uint64_t bytes() const {
        std::uint64_t sum = 0;
        for (const auto& [address, entry] : idle) sum += entry.piece.bytes;
        return sum;
    }

    std::map<std::uint64_t, Entry> idle;
};

void expect_same(const Extents& extents, const Reference& reference) {
    const auto runs = reference.runs();
    std::size_t at = 0;
    extents.each_idle([&](const Extent& extent, std::int64_t since) {
        REQUIRE(at < runs.size());
        const Reference::Run& run = runs[at++];
        CHECK_EQUAL(extent.address, run.places[0].address);
        CHECK_EQUAL(since, run.since);
        REQUIRE(extent.pieces.size() == run.places.size());
        for (std::size_t i = 0; i < run.places.size(); ++i) {
            CHECK_EQUAL(extent.pieces[i].handle, run.places[i].piece.handle);
        }
    });
    CHECK_EQUAL(at, runs.size());
    CHECK_EQUAL(extents.idle(), reference.bytes());
}

}  // namespace

TEST(ten_thousand_random_steps_agree_with_a_simple_reference) {
    Bench bench;
    Extents& extents = *bench.extents;
    Reference reference;
    std::mt19937 random(20240607);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    std::uint64_t tag = 0;
    std::map<std::uint64_t, std::uint64_t> tags;  // of pages of held extents
    const auto mark = [&](const Extent& extent) {
        extent.each_place(
            [&](const Place& place) { write(place.address, tags[place.address] = ++tag); });
    };
    const auto verify = [&](const Extent& extent) {
        extent.each_place([&](const Place& place) {
            CHECK_EQUAL(read(place.address), tags[place.address]);
            tags.erase(place.address);
        });
    };
    std::uint64_t composed = 0, joined = 0, taken = 0, released = 0;
    for (std::int64_t step = 0; step < 10000; ++step) {
        Failure why;
        const std::uint64_t bytes = (1 + below(12)) * kPage;
        switch (below(12)) {
            case 0:
            case 1:
                if (auto made = extents.create(bytes, why)) {
                    mark(bench.held.emplace_back(*made));
                } else {
                    CHECK_EQUAL(why.kind, Failure::Kind::out_of_memory);
                }
                break;
            case 2:
            case 3:
            case 4:
            case 5: {
                if (bench.held.empty()) break;
                const auto chosen = bench.held.begin() + below(bench.held.size());
                verify(*chosen);
                reference.give(*chosen, step);
                extents.give(*chosen, step);
                bench.held.erase(chosen);
                break;
            }
            case 6:
            case 7:
            case 8: {
                const std::uint64_t most = bytes + below(3) * kPage;
                const auto [address, sum] = reference.best(bytes, most);
                const auto made = extents.take(bytes, most);
                CHECK_EQUAL(made ? made->address : 0, address);
                CHECK_EQUAL(made ? made->bytes : 0, sum);
                if (!made) break;
                ++taken;
                reference.remove(*made);
                mark(bench.held.emplace_back(*made));
                break;
            }
            case 9: {
                const std::uint64_t wanted = bytes * 3, may_create = below(8) * kPage;
                const std::uint64_t before = extents.mapped(), idle = extents.idle();
                const std::uint64_t lacking = wanted > idle ? wanted - idle : 0;
                const auto made = extents.compose(wanted, may_create, why);
                if (!made) {
                    CHECK_EQUAL(why.kind, Failure::Kind::out_of_memory);
                    CHECK(lacking > may_create || why.call == "cuMemCreate");
                    break;
                }
                ++composed;
                CHECK(made->bytes >= wanted && lacking <= may_create);
                CHECK_EQUAL(extents.mapped(), before + lacking);
                CHECK_EQUAL(extents.idle(), idle + lacking - made->bytes);
                reference.remove_handles(made->pieces);
                mark(bench.held.emplace_back(*made));
                break;
            }
            case 10: {
                const std::uint64_t idle = extents.idle(), largest = extents.largest_idle();
                if (below(8) > 0) break;
                const std::uint64_t moved = extents.join(bytes * 2, why);
                CHECK_EQUAL(moved > 0, largest < bytes * 2 && idle >= bytes * 2);
                if (moved == 0) break;
                ++joined;
                CHECK_EQUAL(extents.largest_idle(), idle);
                std::int64_t newest = 0;
                for (const auto& [address, entry] : reference.idle) {
                    newest = std::max(newest, entry.since);
                }
                reference.idle.clear();
                extents.each_idle([&](const Extent& extent, std::int64_t since) {
                    CHECK_EQUAL(since, newest);
                    reference.give(extent, since);
                });
                break;
            }
            default: {
                extents.unmap_old(below(4));
                if (below(4) > 0) break;
                const std::int64_t idle_before = step - static_cast<std::int64_t>(below(50));
                const std::uint64_t gone = extents.release(bytes, idle_before);
                CHECK_EQUAL(gone, reference.release(bytes, idle_before));
                released += gone > 0;
                break;
            }
        }
        bench.well();
        expect_same(extents, reference);
        if (testing::failures_in_test() > 0) {
            std::fprintf(stderr, "at step %lld\n", static_cast<long long>(step));
            break;
        }
    }
    // The sequence has been everywhere.
    CHECK(composed > 100 && joined > 10 && taken > 500 && released > 50);
    for (const Extent& extent : bench.held) verify(extent);
}
