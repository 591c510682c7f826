// Random steps on two sets of free ranges, each beside a model too simple to be wrong.
#include <random>

#include "free_ranges_bench.h"

using namespace free_ranges;

namespace {

// The ranges of one set, in order of address.
struct Model {
    std::vector<Part> parts;
    std::uint64_t low = 0;

    std::uint64_t spans() const {
        std::uint64_t sum = 0;
        for (const Part& part : parts) sum += part.spans;
        return sum;
    }
    void put(const Part& part) {
        parts.push_back(part);
        std::ranges::sort(parts, {}, &Part::begin);
    }
    void remove(const Part& part) {
        const auto found = std::ranges::find(parts, part);
        REQUIRE(found != parts.end());
        parts.erase(found);
    }
    // The front of one of the parts.
    void take(const Part& taken) {
        const auto found = std::ranges::find(parts, taken.begin, &Part::begin);
        REQUIRE(found != parts.end() && found->fence == taken.fence);
        const Part whole = *found;
        parts.erase(found);
        if (whole.spans > taken.spans) {
            put({taken.end(), whole.spans - taken.spans, whole.fence});
        }
        low = std::min(low, spans());
    }
    void join() {
        std::vector<Part> joined;
        for (const Part& part : parts) {
            if (!joined.empty() && joined.back().end() == part.begin) {
                joined.back().spans += part.spans;
                joined.back().fence = std::max(joined.back().fence, part.fence);
            } else {
                joined.push_back(part);
            }
        }
        parts = joined;
    }
    // The spans of the smallest that is large enough; 0: none is.
    std::uint64_t smallest(std::uint64_t least, Fences::Number passed) const {
        std::uint64_t best = 0;
        for (const Part& part : parts) {
            if (part.spans < least || part.fence > passed) continue;
            if (best == 0 || part.spans < best) best = part.spans;
        }
        return best;
    }
    std::uint64_t size_at(std::uint64_t begin) const {
        return std::ranges::find(parts, begin, &Part::begin)->spans;
    }
};

constexpr Fences::Number kAnyFence = ~Fences::Number{0};
constexpr std::uint64_t kSpans = 6000;  // some ranges are in bins of several sizes

// How often the steps did what they are for.
struct Counts {
    int exact = 0, best = 0, passed = 0, collected = 0, removed = 0;
};

class Random {
  public:
    Random(unsigned seed, Counts& counts) : counts_(counts), random_(seed) {
        held_.push_back(&bench_.make(0, kSpans));
    }

    void step() {
        const bool first = below(2) == 0;
        FreeRanges& set = first ? bench_.free : bench_.other;
        Model& model = first ? free_ : other_;
        const std::uint64_t spans = 1 + below(below(8) == 0 ? 800 : 30);
        switch (below(12)) {
            case 0:
            case 1:
            case 2:
            case 3:
                cut_and_put(set, model);
                break;
            case 4: {
                Slab* const range = set.take_exact(spans * kSpan);
                const bool there =
                    std::ranges::find(model.parts, spans, &Part::spans) != model.parts.end();
                CHECK_EQUAL(range != nullptr, there);
                if (range != nullptr) took(*range, model, spans);
                counts_.exact += range != nullptr;
                break;
            }
            case 5:
            case 6: {
                model.join();
                Slab* const range = set.take_best(spans * kSpan);
                check_taken(range, model, spans, kAnyFence);
                counts_.best += range != nullptr;
                break;
            }
            case 7: {
                Slab* const range = set.take_passed(spans * kSpan, bench_.fences);
                check_taken(range, model, spans, passed_);
                counts_.passed += range != nullptr;
                break;
            }
            case 8:
                collect(set, model);
                break;
            case 9:
                remove_part(set, model);
                break;
            case 10:
                set.join();
                model.join();
                break;
            default:
                // Up to now, or some of it.
                bench_.fences.pass(passed_ += below(fence_ - passed_ + 1));
                fence_ = std::max(fence_, passed_ + 1);
                CHECK_EQUAL(set.reset_low(), model.low * kSpan);
                model.low = model.spans();
        }
        check(bench_.free, free_);
        check(bench_.other, other_);
    }

  private:
    std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

    // A part of a range that is in no set, cut off at random.
    void cut_and_put(FreeRanges& set, Model& model) {
        if (held_.empty()) return;
        std::swap(held_[below(held_.size())], held_.back());
        Slab& range = *held_.back();
        held_.pop_back();
        const std::uint64_t spans = range.bytes / kSpan;
        const std::uint64_t keep = std::min(spans, 1 + below(below(4) == 0 ? 900 : 40));
        if (keep < spans) held_.push_back(&bench_.ranges.cut(range, keep * kSpan, spare_));
        fence_ += below(2);
        const Fences::Number fence = below(4) == 0 ? 0 : fence_;  // idle memory joins it
        set.put(range, fence);
        model.put(part_of(range));
    }
    void took(Slab& range, Model& model, std::uint64_t spans) {
        CHECK_EQUAL(part_of(range).spans, spans);
        model.take(part_of(range));
        held_.push_back(&range);
    }
    void check_taken(Slab* range, Model& model, std::uint64_t spans, Fences::Number most) {
        const std::uint64_t smallest = model.smallest(spans, most);
        CHECK_EQUAL(range != nullptr, smallest > 0);
        if (range == nullptr) return;
        CHECK_EQUAL(model.size_at(part_of(*range).begin), smallest);
        CHECK(range->fence <= most);
        took(*range, model, spans);
    }
    void collect(FreeRanges& set, Model& model) {
        std::uint64_t could = 0, given = 0;
        for (const Part& part : model.parts) could += part.fence <= passed_ ? part.spans : 0;
        set.collect(bench_.fences, [&](Slab& range) {
            CHECK(range.fence <= passed_);
            given += range.bytes / kSpan;
            took(range, model, range.bytes / kSpan);
        });
        CHECK_EQUAL(given, could);
        counts_.collected += given > 0;
    }
    void remove_part(FreeRanges& set, Model& model) {
        if (model.parts.empty()) return;
        const Part whole = model.parts[below(model.parts.size())];
        const std::uint64_t skip = below(2) * below(whole.spans);
        const Part part{whole.begin + skip,
                        below(2) == 0 ? whole.spans - skip : 1 + below(whole.spans - skip), 0};
        model.remove(whole);
        if (skip > 0) model.put({whole.begin, skip, whole.fence});
        if (part.end() < whole.end()) {
            model.put({part.end(), whole.end() - part.end(), whole.fence});
        }
        model.low = std::min(model.low, model.spans());
        bench_.ranges.reserve(spare_, 2);
        Slab* const range = bench_.ranges.behind(kBase + whole.begin * kSpan, &set);
        REQUIRE(range != nullptr);
        set.remove_part(*range, {kBase + part.begin * kSpan, part.spans * kSpan}, spare_);
        held_.push_back(&bench_.make(part.begin, part.spans));  // mapped again
        ++counts_.removed;
    }
    void check(const FreeRanges& set, const Model& model) {
        CHECK(Bench::parts_of(set) == model.parts);
        CHECK_EQUAL(set.bytes(), model.spans() * kSpan);
        CHECK_EQUAL(set.count(), model.parts.size());
        CHECK_EQUAL(set.low(), model.low * kSpan);
        CHECK(!set.has_missed_neighbours());
        for (const Part& part : model.parts) {
            CHECK(set.oldest() <= part.fence && part.fence <= set.newest());
        }
        std::uint64_t all = free_.spans() + other_.spans();
        for (const Slab* const range : held_) {
            CHECK(range->free_in == nullptr);
            all += range->bytes / kSpan;
        }
        CHECK_EQUAL(all, kSpans);
    }

    Counts& counts_;
    std::mt19937 random_;
    Bench bench_{kSpans};
    Ranges::Spare spare_;
    std::vector<Slab*> held_;  // ranges in no set
    Model free_, other_;
    Fences::Number fence_ = 1, passed_ = 0;
};

}  // namespace

TEST(random_steps_on_two_sets_agree_with_their_models) {
    Counts counts;
    for (int seed = 0; seed < testing::rounds(4, 200); ++seed) {
        Random random(static_cast<unsigned>(seed), counts);
        for (int step = 0; step < 1500 && testing::failures_in_test() == 0; ++step) {
            random.step();
            if (testing::failures_in_test() > 0) {
                std::fprintf(stderr, "at step %d of seed %d\n", step, seed);
            }
        }
    }
    CHECK(counts.exact > 40 && counts.best > 200 && counts.passed > 80);
    CHECK(counts.collected > 200 && counts.removed > 200);
}
