// A long random sequence on the extents, every step beside a reference too simple to be wrong.
#include <map>
#include <random>
#include <set>

#include "extents_bench.h"

namespace {

// Idle pages with the time when they became so; extents are the runs they form.
class Reference {
  public:
    void give(const Extent& extent, std::int64_t now) {
        for (std::uint64_t at = extent.address; at < extent.end(); at += kPage) idle[at] = now;
    }
    // All pages of it were idle, and are no more.
    void remove(const Extent& extent) {
        for (std::uint64_t at = extent.address; at < extent.end(); at += kPage) {
            CHECK_EQUAL(idle.erase(at), std::size_t{1});
        }
    }
    std::uint64_t longest() const {
        std::uint64_t longest = 0, begin = 0, end = 0;
        for (const auto& [address, since] : idle) {
            if (address != end) begin = address;
            end = address + kPage;
            longest = std::max(longest, end - begin);
        }
        return longest;
    }
    std::uint64_t bytes() const { return idle.size() * kPage; }
    static std::set<std::uint64_t> pages_of(const Extents& extents) {
        std::set<std::uint64_t> pages;
        extents.each_idle([&](const Extent& extent) {
            for (std::uint64_t at = extent.address; at < extent.end(); at += kPage)
                pages.insert(at);
        });
        return pages;
    }
    std::set<std::uint64_t> pages() const {
        std::set<std::uint64_t> pages;
        for (const auto& [address, since] : idle) pages.insert(address);
        return pages;
    }
    // Handles went that were idle before that time; the others stayed.
    void expect_some_went(const Extents& extents, std::uint64_t gone, std::int64_t idle_before) {
        const auto left = pages_of(extents);
        const std::size_t before = idle.size();
        std::erase_if(idle, [&](const auto& page) {
            if (left.contains(page.first)) return false;
            CHECK(page.second < idle_before);
            return true;
        });
        CHECK_EQUAL(idle.size(), left.size());
        CHECK_EQUAL((before - left.size()) * kPage, gone);
    }

    std::map<std::uint64_t, std::int64_t> idle;
};

}  // namespace

TEST(random_steps_agree_with_a_simple_reference) {
    Bench bench;
    Extents& extents = *bench.extents;
    Reference reference;
    std::mt19937 random(20240607);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    std::uint64_t tag = 0;
    std::map<std::uint64_t, std::uint64_t> tags;  // of the pages of held extents
    const auto hold = [&](const Extent& extent) {
        for (std::uint64_t at = extent.address; at < extent.end(); at += kPage) {
            write(at, tags[at] = ++tag);
        }
        bench.held.push_back(extent);
    };
    const auto verify = [&](const Extent& extent) {
        for (std::uint64_t at = extent.address; at < extent.end(); at += kPage) {
            CHECK_EQUAL(read(at), tags[at]);
            tags.erase(at);
        }
    };
    std::uint64_t composed = 0, joined = 0, taken = 0, cut = 0, released = 0;
    for (std::int64_t step = 0; step < testing::rounds(3000, 100'000); ++step) {
        Failure why;
        const std::uint64_t bytes = (1 + below(12)) * kPage;
        switch (below(12)) {
            case 0:
            case 1:
                extents.set_handle_bytes((1 + below(8)) * kPage);
                if (auto made = extents.create(bytes, why)) {
                    hold(*made);
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
                const std::uint64_t cut_up_to = below(2) * below(12) * kPage;
                const bool cuts_all = below(4) == 0;
                const auto made = extents.take(bytes, most, cuts_all ? kEver : cut_up_to);
                if (cuts_all) CHECK_EQUAL(made.has_value(), reference.longest() >= bytes);
                if (!made) break;
                CHECK(made->bytes >= bytes && made->bytes <= most);
                ++taken;
                reference.remove(*made);
                hold(*made);
                extents.each_part(*made, [&](std::uint64_t part) { cut += part % bytes != 0; });
                break;
            }
            case 9: {
                const std::uint64_t wanted = bytes * 3, may_create = below(8) * kPage;
                const std::uint64_t before = extents.mapped();
                const auto made = extents.compose(wanted, may_create, why);
                const std::uint64_t created = extents.mapped() - before;
                CHECK(created <= may_create);
                if (!made) {
                    CHECK_EQUAL(why.kind, Failure::Kind::out_of_memory);
                    CHECK_EQUAL(created, std::uint64_t{0});
                    break;
                }
                ++composed;
                CHECK(made->bytes >= wanted && (created == 0 || made->bytes == wanted));
                reference.expect_some_went(extents, made->bytes - created, kAlways);
                hold(*made);
                break;
            }
            case 10: {
                if (below(8) > 0) break;
                const std::uint64_t moved = extents.join(why);
                const auto after = Reference::pages_of(extents);
                CHECK_EQUAL(after.size(), reference.idle.size());
                if (moved == 0) break;
                ++joined;
                CHECK(extents.largest_idle() >= moved);
                std::erase_if(reference.idle,
                              [&](const auto& page) { return !after.contains(page.first); });
                // What has moved is as old as it was, wherever that is.
                for (const std::uint64_t page : after) reference.idle.try_emplace(page, 0);
                CHECK_EQUAL(extents.join(why), std::uint64_t{0});
                break;
            }
            default: {
                extents.unmap_old(below(4));
                if (below(4) > 0) break;
                const std::int64_t idle_before = step - static_cast<std::int64_t>(below(50));
                const std::uint64_t gone = extents.release(bytes, idle_before);
                std::uint64_t old = 0;
                for (const auto& [address, since] : reference.idle) {
                    old += since < idle_before ? kPage : 0;
                }
                CHECK(gone <= old);
                reference.expect_some_went(extents, gone, idle_before);
                released += gone > 0;
                break;
            }
        }
        bench.well();
        CHECK(Reference::pages_of(extents) == reference.pages());
        CHECK_EQUAL(extents.idle(), reference.bytes());
        CHECK_EQUAL(extents.largest_idle(), reference.longest());
        if (testing::failures_in_test() > 0) {
            std::fprintf(stderr, "at step %lld\n", static_cast<long long>(step));
            break;
        }
    }
    // The sequence has been everywhere.
    CHECK(composed > 30 && joined > 3 && taken > 150 && cut > 30 && released > 15);
    for (const Extent& extent : bench.held) verify(extent);
}
