// Random steps on the memory of a pool with two streams on the simulated GPU: memory is taken,
// moved, joined and given back. Beside it stand bits, one for each span: what is in which set
// before and after a step, which says what the step may have done. The checker watches the order of
// streams.
#include <array>
#include <bitset>
#include <random>
#include <vector>

#include "pool_bench.h"

using namespace bench;

namespace {

constexpr std::uint64_t kCard = 128 * kMiB, kLimit = 96 * kMiB;
constexpr std::size_t kSpans = 4 * kCard / kSpan;  // of the pool's addresses
using Spans = std::bitset<kSpans>;

struct Held {
    BlockRef block;
    int stream = 0;
    unsigned char value = 0;  // of all its bytes
};

// How often the steps did what they are for.
struct Counts {
    int moved = 0, grown = 0, refused = 0, from_idle = 0, from_other = 0, joined = 0, released = 0,
        slabs = 0;
};

class Random {
  public:
    Random(unsigned seed, Counts& counts) : counts_(counts), random_(seed) {
        Config config;
        config.limit = kLimit;
        Failure why;
        REQUIRE(memory_.open(config, why));
        for (std::uint32_t number = 0; number < 2; ++number) {
            own_.push_back(std::make_shared<StreamCache>(events_, memory_.ranges(), number,
                                                         card_.stream(true)));
        }
    }
    ~Random() {
        for (const auto& own : own_) {
            CHECK_EQUAL(card_.call.cuStreamSynchronize(own->stream.handle), CUDA_SUCCESS);
        }
        memory_.give_everything_back();
        own_.clear();
        events_.drop();
        check_order(card_);
        check_nothing_left();
    }

    void step() {
        const int stream = static_cast<int>(below(2));
        StreamCache& own = *own_[stream];
        switch (below(16)) {
            case 0:
            case 1:
            case 2:
            case 3:
                take(stream);
                break;
            case 4:
            case 5:
                make(stream);
                break;
            case 6:
            case 7:
            case 8:
            case 9:
                free();
                break;
            case 10:
                take_small(stream);
                break;
            case 11:
                collect(own);
                break;
            case 12:
                take_of_other(stream);
                break;
            case 13:
                join();
                break;
            case 14:
                release();
                break;
            default:
                if (below(2) == 0) {
                    card_.occupy(own.stream);
                } else {
                    gpu::sim().advance(kSecond);
                }
        }
        while (held_.size() > 30) free();
        check();
    }

  private:
    // What is free, and where.
    struct Free {
        Spans idle, own[2];

        bool operator==(const Free&) const = default;
        std::uint64_t count() const { return idle.count() + own[0].count() + own[1].count(); }
    };

    std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
    std::uint64_t some_bytes() {
        const std::uint64_t spans = 1 + below(below(5) == 0 ? 240 : 40);
        return spans * kSpan;
    }
    Spans spans_of(const Extent& extent) const {
        Spans spans;
        const std::uint64_t first = (extent.address - memory_.addresses().base()) / kSpan;
        for (std::uint64_t i = 0; i < extent.bytes / kSpan; ++i) spans.set(first + i);
        return spans;
    }
    Spans spans_of(const FreeRanges& ranges) const {
        Spans spans;
        ranges.each([&](const Slab& range) {
            spans |= spans_of(range.extent());
            return true;
        });
        return spans;
    }
    Free free_now() const {
        return {spans_of(memory_.idle()), {spans_of(own_[0]->ranges), spans_of(own_[1]->ranges)}};
    }
    // Bytes of pieces that are free as a whole in one of these sets.
    std::uint64_t movable(const Free& free, const Spans* own) const {
        std::uint64_t bytes = 0;
        memory_.pieces().each([&](const Extent& piece) {
            const Spans spans = spans_of(piece);
            if ((spans & ~free.idle).none() || (own != nullptr && (spans & ~*own).none())) {
                bytes += piece.bytes;
            }
        });
        return bytes;
    }

    // The stream uses a block from now on.
    void hold(BlockRef block, int stream) {
        block.block().set(State::live, own_[stream]->number, 0);
        const auto value = static_cast<unsigned char>(random_());
        context_.checker.block_allocated(block.address(), block.bytes(),
                                         own_[stream]->stream.handle);
        CHECK_EQUAL(card_.call.cuMemsetD8Async(block.address(), value, block.bytes(),
                                               own_[stream]->stream.handle),
                    CUDA_SUCCESS);
        held_.push_back({block, stream, value});
    }
    void take(int stream) {
        StreamCache& own = *own_[stream];
        const std::uint64_t bytes = some_bytes();
        const Free before = free_now();
        const BlockRef block = own.take_range(bytes);
        if (block.slab != nullptr) {
            CHECK((spans_of(block.slab->extent()) & ~before.own[stream]).none());
            hold(block, stream);
            return;
        }
        const BlockRef idle = memory_.take_idle_range(bytes);
        if (idle.slab != nullptr) {
            CHECK((spans_of(idle.slab->extent()) & ~before.idle).none());
            ++counts_.from_idle;
            hold(idle, stream);
            return;
        }
        CHECK(free_now() == before);
        // Nothing is lost when idle memory becomes the stream's, and only its neighbours do.
        memory_.join_idle_to(own);
        const Free after = free_now();
        CHECK((before.own[stream] & ~after.own[stream]).none());
        CHECK((before.own[stream] | before.idle) == (after.own[stream] | after.idle));
        if (before.own[stream].none()) CHECK(after == before);
    }
    void make(int stream) {
        using Thrift = DeviceMemory::Thrift;
        const bool with_own = below(4) != 0;
        const Thrift thrift = std::array{Thrift::none, Thrift::earned, Thrift::must}[below(3)];
        const std::shared_ptr<StreamCache>& own = own_[stream];
        const std::uint64_t bytes = some_bytes();
        const Free before = free_now();
        const std::uint64_t mapped = memory_.mapped(), may_grow = memory_.may_grow();
        const std::uint64_t had = counters_.remapped_bytes;
        const std::uint64_t can_move = movable(before, with_own ? &before.own[stream] : nullptr);
        const std::uint64_t whole = round_up(bytes, kPage);
        const std::uint64_t lacking = whole - std::min(whole, can_move);
        Failure why;
        const DeviceMemory::Made one =
            memory_.make_range(bytes, with_own ? own : nullptr, thrift, why);
        const Free after = free_now();
        const std::uint64_t created = memory_.mapped() - mapped;
        CHECK(after.own[1 - stream] == before.own[1 - stream]);
        if (!with_own) CHECK(after.own[stream] == before.own[stream]);
        if (one.block.slab == nullptr) {
            CHECK(why.kind == Failure::Kind::out_of_memory);
            CHECK(lacking > may_grow);
            CHECK(after == before);
            CHECK_EQUAL(created, std::uint64_t{0});
            ++counts_.refused;
            return;
        }
        counts_.moved += counters_.remapped_bytes > had;
        counts_.grown += created > 0;
        CHECK_EQUAL(one.grown, created > 0);
        CHECK_EQUAL(one.block.bytes(), bytes);
        CHECK(created <= may_grow);
        // Not more than what is lacking where pieces must move, nor than what was asked for; but a
        // small request takes a whole page, and one in a hurry a whole piece.
        const std::uint64_t most = thrift == Thrift::must && bytes >= kPage ? lacking : whole;
        CHECK(created <= (thrift == Thrift::none ? std::max(most, 4 * kMiB) : most));
        CHECK_EQUAL(after.count() + bytes / kSpan, before.count() + created / kSpan);
        hold(one.block, stream);
    }
    void take_small(int stream) {
        StreamCache& own = *own_[stream];
        const ClassIndex index = fine_class_of(1 + below(60 * 1024));
        const std::uint64_t batch = 1 + below(16);
        const Free before = free_now();
        if (own.bins[index].blocks.empty() && below(2) == 0) {
            if (!memory_.make_slab_of(own, index, batch)) {
                CHECK(free_now() == before);
                return;
            }
            ++counts_.slabs;
            const Free after = free_now();
            CHECK(after.idle == before.idle && after.own[1 - stream] == before.own[1 - stream]);
            CHECK_EQUAL(after.count() + slab_bytes(index, batch) / kSpan, before.count());
        }
        BlockRef block = own.take_newest(index);
        if (block.slab == nullptr) block = memory_.take_idle_small(index, batch);
        if (block.slab != nullptr) hold(block, stream);
    }
    void free() {
        if (held_.empty()) return;
        std::swap(held_[below(held_.size())], held_.back());
        const Held held = held_.back();
        held_.pop_back();
        StreamCache& own = *own_[held.stream];
        if (below(4) == 0) verify(held);
        context_.checker.block_freed(held.block.address(), held.block.bytes(), own.stream.handle);
        own.put(held.block);
    }
    // The block has what its stream wrote, wherever other memory has moved in the meantime.
    void verify(const Held& held) {
        CHECK_EQUAL(card_.call.cuStreamSynchronize(own_[held.stream]->stream.handle), CUDA_SUCCESS);
        const std::uint64_t begin = held.block.address(), end = begin + held.block.bytes();
        for (std::uint64_t at = begin; at < end; at += kSpan / 4 + 7) {
            unsigned char value = 0;
            CHECK_EQUAL(card_.call.cuMemcpyDtoH_v2(&value, at, 1), CUDA_SUCCESS);
            CHECK_EQUAL(value, held.value);
        }
    }
    // What the pool does for another stream's request.
    void collect(StreamCache& own) {
        own.record_fence();
        own.fences.poll();
        for (ClassIndex index = own.next_filled(0); index < kClasses;
             index = own.next_filled(index + 1)) {
            std::vector<BlockRef> blocks;
            own.take_passed(index, ~std::size_t{0}, blocks);
            for (const BlockRef& block : blocks) memory_.give_idle(block);
        }
        own.ranges.collect(own.fences, [&](Slab& range) { memory_.give_idle({&range, 0}); });
        memory_.end_untouched_slabs();
    }
    void take_of_other(int stream) {
        StreamCache& other = *own_[1 - stream];
        other.record_fence();
        other.fences.poll();
        Slab* const range = other.ranges.take_passed(some_bytes(), other.fences);
        if (range == nullptr) return;
        ++counts_.from_other;
        hold({range, 0}, stream);
    }
    void join() {
        const Free before = free_now();
        Failure why;
        const std::uint64_t bytes = memory_.join_idle(why);
        const Free after = free_now();
        CHECK(after.own[0] == before.own[0] && after.own[1] == before.own[1]);
        CHECK_EQUAL(after.count(), before.count());
        if (bytes == 0) return;
        ++counts_.joined;
        // All pieces that can move lie in one range.
        std::size_t holding = 0;
        memory_.idle().each([&](const Slab& range) {
            bool any = false;
            memory_.pieces().each_whole(range.extent(), [&](const Mapping&, std::int64_t) {
                any = true;
                return false;
            });
            holding += any;
            return true;
        });
        CHECK_EQUAL(holding, std::size_t{1});
        CHECK_EQUAL(memory_.join_idle(why), std::uint64_t{0});
    }
    void release() {
        if (below(2) == 0) {
            memory_.unmap_old();
            return;
        }
        const Free before = free_now();
        const std::uint64_t mapped = memory_.mapped(), can = movable(before, nullptr);
        bool more = false;
        const bool all = below(4) == 0;
        const std::uint64_t bytes = all ? memory_.release_idle(DeviceMemory::kAnyTime)
                                        : memory_.release_some(card_time(), more);
        const Free after = free_now();
        CHECK_EQUAL(memory_.mapped() + bytes, mapped);
        CHECK(bytes <= can);
        CHECK(after.own[0] == before.own[0] && after.own[1] == before.own[1]);
        CHECK((after.idle & ~before.idle).none());
        CHECK_EQUAL(after.idle.count() + bytes / kSpan, before.idle.count());
        counts_.released += bytes > 0;
    }
    std::int64_t card_time() const { return static_cast<std::int64_t>(gpu::sim().now()); }

    void check() {
        std::vector<Extent> used;
        std::size_t large = 0, small = 0;
        memory_.ranges().each([&](const Slab& range) {
            used.push_back(range.extent());
            ++large;
        });
        for (const auto& [address, slab] : memory_.slabs().all()) used.push_back(slab->extent());
        std::ranges::sort(used, {}, &Extent::address);
        CHECK_EQUAL(memory_.pieces().check(used), std::string());
        CHECK(memory_.reserved() <= kLimit);
        CHECK(memory_.peak_reserved() >= memory_.reserved());
        std::size_t free = memory_.idle().count();
        Spans known = spans_of(memory_.idle());
        const auto add = [&](const Spans& spans) {
            CHECK((known & spans).none());  // in one set only
            known |= spans;
        };
        for (const auto& own : own_) {
            free += own->ranges.count();
            CHECK(!own->ranges.has_missed_neighbours());
            add(spans_of(own->ranges));
        }
        CHECK(!memory_.idle().has_missed_neighbours());
        for (const Held& held : held_) {
            CHECK(held.block.block().state() == State::live);
            if (!held.block.slab->large) continue;
            ++small;
            add(spans_of(held.block.slab->extent()));
        }
        CHECK_EQUAL(large, free + small);
    }

    Counts& counts_;
    std::mt19937 random_;
    Card card_{"checker=on,data=on,capacity=128MiB"};
    DeviceContext context_{simulated(), 0, card_.context, kCard};
    Stats counters_;
    DeviceMemory memory_{context_, counters_};
    EventPool events_{card_.call};
    std::vector<std::shared_ptr<StreamCache>> own_;
    std::vector<Held> held_;
};

}  // namespace

TEST(random_steps_lose_nothing_and_move_only_what_they_may) {
    Counts counts;
    for (int seed = 0; seed < testing::rounds(2, 100); ++seed) {
        Random random(static_cast<unsigned>(seed), counts);
        for (int step = 0; step < 1200 && testing::failures_in_test() == 0; ++step) {
            random.step();
            if (testing::failures_in_test() > 0) {
                std::fprintf(stderr, "at step %d of seed %d\n", step, seed);
            }
        }
    }
    CHECK(counts.moved > 40 && counts.grown > 40 && counts.refused > 5);
    CHECK(counts.from_idle > 40 && counts.from_other > 30 && counts.slabs > 20);
    CHECK(counts.joined > 5 && counts.released > 10);
}
