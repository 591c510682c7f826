// The order of copies and of the work that uses them, kept by the streamer of weights and watched
// by the checker: one sequence for each rule, and threads and streams in random order. The same
// program is built with one rule broken at a time (broken_rules): the checker must then report.
#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "pool_bench.h"
#include "weights/decoder.h"
#include "weights/giving_way.h"
#include "weights/packing.h"
#include "weights/streamer.h"

using namespace bench;
using weights::Copied;
using weights::GroupIndex;
using weights::GroupSource;
using weights::Ring;
using weights::Schedule;
using weights::Streamer;

namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kRing = 2 * kMiB;
constexpr std::uint64_t kLargest = 1536 * kKiB;

enum class Groups : std::uint8_t { plain, packed, gathered };

// Fills a chunk's place from a share of it, as gathering from other processes does.
class Gathering final : public weights::Expander {
  public:
    explicit Gathering(const DriverTable& call) : call_(call) {}
    bool expand(const std::string&, const weights::Chunk& chunk, CUdeviceptr staged,
                CUdeviceptr place, CUstream stream, Failure& why) override {
        for (std::uint64_t at = 0; at < chunk.bytes; at += chunk.stored) {
            if (failed(call_.cuMemcpyAsync(place + chunk.first_byte + at, staged, chunk.stored,
                                           stream),
                       "cuMemcpyAsync", why)) {
                return false;
            }
        }
        return true;
    }

  private:
    const DriverTable& call_;
};

// A ring, one handle mapped twice; groups behind each other around it, a resident one behind them;
// and their source in pinned memory.
class Model {
  public:
    explicit Model(const Card& on, const std::vector<std::uint64_t>& kibibytes,
                   std::uint64_t resident_kibibytes = 0, std::uint64_t chunk = 256 * kKiB,
                   Groups kind = Groups::plain)
        : card(on) {
        const DriverTable& call = card.call;
        CUmemAllocationProp what{};
        what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        what.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        CUmemGenericAllocationHandle handle = 0;
        CHECK_EQUAL(call.cuMemAddressReserve(&ring_, 2 * kRing, 0, 0, 0), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuMemCreate(&handle, kRing, &what, 0), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuMemMap(ring_, kRing, 0, handle, 0), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuMemMap(ring_ + kRing, kRing, 0, handle, 0), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuMemRelease(handle), CUDA_SUCCESS);
        const CUmemAccessDesc access{what.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CHECK_EQUAL(call.cuMemSetAccess(ring_, 2 * kRing, &access, 1), CUDA_SUCCESS);
        host_ = static_cast<std::byte*>(gpu::make_pinned(kLargest));
        std::uint64_t at = 0;
        for (const std::uint64_t each : kibibytes) {
            groups.push_back(
                {std::to_string(groups.size()), ring_ + at % kRing, host_, each * kKiB, {}});
            at += each * kKiB;
        }
        if (resident_kibibytes > 0) {
            resident_ = gpu::make_memory(resident_kibibytes * kKiB);
            groups.push_back({"resident", resident_, host_, resident_kibibytes * kKiB, {}});
        }
        if (kind == Groups::packed) pack();
        if (kind == Groups::gathered) share_out();
        Failure why;
        streamer =
            Streamer::open(simulated(), card.context, {ring_, kRing}, groups, chunk, staging_, why);
        REQUIRE(streamer != nullptr);
    }
    ~Model() {
        Failure why;
        CHECK(streamer->synchronize(why));
        streamer.reset();
        const DriverTable& call = card.call;
        CHECK_EQUAL(call.cuCtxSynchronize(), CUDA_SUCCESS);  // nothing of the readers is left
        for (const std::uint64_t half : {ring_, ring_ + kRing}) {
            CHECK_EQUAL(call.cuMemUnmap(half, kRing), CUDA_SUCCESS);
        }
        CHECK_EQUAL(call.cuMemAddressFree(ring_, 2 * kRing), CUDA_SUCCESS);
        if (resident_ != 0) CHECK_EQUAL(call.cuMemFree_v2(resident_), CUDA_SUCCESS);
        if (staging_.address != 0) {
            CHECK_EQUAL(call.cuMemFree_v2(staging_.address), CUDA_SUCCESS);
        }
        CHECK_EQUAL(call.cuMemFreeHost(host_), CUDA_SUCCESS);
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    bool shares(GroupIndex one, GroupIndex other) const {
        const std::uint64_t distance =
            (groups[other].address + kRing - groups[one].address) % kRing;
        return distance < groups[one].bytes || kRing - distance < groups[other].bytes;
    }
    bool in_ring(GroupIndex group) const { return groups[group].address - ring_ < kRing; }
    GroupIndex count() const { return static_cast<GroupIndex>(groups.size()); }

    // After each step what follows, until a group would overwrite one that is needed first.
    Schedule schedule(const std::vector<GroupIndex>& order) const {
        const auto ahead = [&](std::size_t begin) {
            Schedule::List list;
            for (std::size_t step = begin; step < begin + order.size(); ++step) {
                const GroupIndex group = order[step % order.size()];
                if (!in_ring(group)) continue;
                bool room = true;
                for (const GroupIndex other : list) room = room && !shares(group, other);
                if (!room) break;
                list.push_back(group);
            }
            return list;
        };
        Schedule made{order, ahead(0), std::vector<Schedule::List>(order.size()), {}, 0};
        for (std::size_t step = 0; step < order.size(); ++step) {
            made.after.push_back(ahead(step + 1));
        }
        return made;
    }

    // Each of them: whether it was done. What is refused is refused for a reason that is no
    // error of the driver.
    bool enter(GroupIndex group, const StreamRef& stream) const {
        bool on_its_way = false;
        return done([&](Failure& why) { return streamer->enter(group, stream, on_its_way, why); });
    }
    bool leave(GroupIndex group, const StreamRef& stream) const {
        return done([&](Failure& why) { return streamer->leave(group, stream, why); });
    }
    bool prefetch(GroupIndex group, bool urgent) const {
        return done([&](Failure& why) { return streamer->prefetch(group, urgent, why); });
    }
    bool move(const Streamer::Moves& moves, CUstream behind = nullptr) {
        if (!done([&](Failure& why) { return streamer->move(moves, behind, why); })) return false;
        for (const auto& [group, address] : moves) groups[group].address = address;
        return true;
    }
    bool evict(GroupIndex group) const {
        return done([&](Failure& why) { return streamer->evict(group, why); });
    }

    const Card& card;
    std::vector<GroupSource> groups;
    std::unique_ptr<Streamer> streamer;
    bool faults = false;  // the driver may fail
    mutable std::atomic<int> faults_met = 0;

  private:
    template <typename Work>
    bool done(const Work& work) const {
        Failure why;
        if (work(why)) return true;
        if (faults && why.kind == Failure::Kind::driver) {
            ++faults_met;
        } else {
            CHECK(why.kind == Failure::Kind::bad_value);
        }
        return false;
    }

    // Every second group is packed, in chunks of which every fifth is as it is. No weights are in
    // them: the simulated card holds no data.
    void pack() {
        constexpr std::uint64_t kWeights = 64 * kKiB, kExceptions = 3;
        make_staging(weights::PackedLayout(kWeights, kExceptions).end,
                     std::make_shared<weights::Decoder>(simulated(), gpu::kernel("vk_unpack_bf16"),
                                                        gpu::kernel("vk_patch_bf16")));
        for (std::size_t each = 0; each < groups.size(); each += 2) {
            GroupSource& group = groups[each];
            for (std::uint64_t at = 0; at < group.bytes; at += 2 * kWeights) {
                const std::uint64_t bytes = std::min(2 * kWeights, group.bytes - at);
                const std::size_t number = group.chunks.size();
                const std::uint64_t exceptions = number % 2 == 0 ? kExceptions : 0;
                const bool packed = number % 5 != 4;
                const std::uint64_t stored =
                    packed ? weights::PackedLayout(bytes / 2, exceptions).end : bytes;
                group.chunks.push_back({at, bytes, at, stored, packed, exceptions});
            }
        }
    }

    // Every group but the last one is gathered from two shares, chunk by chunk.
    void share_out() {
        constexpr std::uint64_t kShare = 64 * kKiB;
        make_staging(kShare, std::make_shared<Gathering>(card.call));
        for (std::size_t each = 0; each + 1 < groups.size(); ++each) {
            GroupSource& group = groups[each];
            for (std::uint64_t at = 0; at < group.bytes; at += 2 * kShare) {
                const std::uint64_t bytes = std::min(2 * kShare, group.bytes - at);
                group.chunks.push_back({at, bytes, at, bytes / 2, true, 0});
            }
        }
    }
    void make_staging(std::uint64_t slot_bytes, std::shared_ptr<weights::Expander> expander) {
        staging_ = {gpu::make_memory(2 * weights::Staging::kSlots * slot_bytes), slot_bytes,
                    std::move(expander)};
    }

    CUdeviceptr ring_ = 0, resident_ = 0;
    weights::Staging staging_;
    std::byte* host_ = nullptr;
};

// A stream that uses groups: it copies them to memory of its own.
class Reader {
  public:
    explicit Reader(const Model& model)
        : stream(model.card.stream()), model_(model), copy_(gpu::make_memory(kLargest)) {}
    ~Reader() {
        const DriverTable& call = model_.card.call;
        CHECK_EQUAL(call.cuStreamSynchronize(stream.handle), CUDA_SUCCESS);
        CHECK_EQUAL(call.cuMemFree_v2(copy_), CUDA_SUCCESS);
        model_.card.destroy(stream);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    void read(GroupIndex group) const {
        const GroupSource& from = model_.groups[group];
        CHECK_EQUAL(
            model_.card.call.cuMemcpyDtoDAsync_v2(copy_, from.address, from.bytes, stream.handle),
            CUDA_SUCCESS);
    }
    void must_use(GroupIndex group) const {
        CHECK(model_.enter(group, stream));
        read(group);
        CHECK(model_.leave(group, stream));
    }

    const StreamRef stream;

  private:
    const Model& model_;
    CUdeviceptr copy_ = 0;
};

// Sizes in KiB that go around the ring of 2048 twice, not at the same places.
const std::vector<std::uint64_t> kUnequal = {600, 100, 900, 512, 1024, 300, 660};

}  // namespace

TEST(a_stream_waits_for_the_copy_of_a_group_that_it_enters) {
    const Card card;
    {
        const Model model(card, {512, 512});
        const Reader one(model), two(model);
        one.must_use(0);  // copied now
        CHECK(model.prefetch(1, false));
        two.must_use(1);  // copied before
        two.must_use(0);  // by another stream than the one it was copied for
        CHECK_EQUAL(model.streamer->counters().copies, std::uint64_t{2});
        CHECK_EQUAL(model.streamer->counters().misses, std::uint64_t{1});
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

TEST(a_copy_waits_for_the_work_that_uses_what_it_overwrites) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            const Model model(card, {1536, 1536});
            const Reader one(model), two(model);
            CHECK(model.enter(0, one.stream));
            CHECK(model.enter(0, two.stream));
            card.occupy(two.stream);
            two.read(0);
            one.read(0);
            CHECK(model.leave(0, two.stream));
            CHECK(model.leave(0, one.stream));
            CHECK(model.prefetch(1, urgent));
            check_order(card);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(a_group_is_copied_again_behind_the_work_that_used_it) {
    const Card card;
    {
        const Model model(card, {512}, 512);
        const Reader reader(model);
        for (const GroupIndex group : {0u, 1u}) {
            for (const bool urgent : {true, false, true}) {
                CHECK(model.prefetch(group, urgent));
                card.occupy(reader.stream);
                reader.must_use(group);
                CHECK(model.evict(group));
            }
        }
        CHECK_EQUAL(model.streamer->counters().copies, std::uint64_t{6});
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

TEST(a_copy_waits_for_one_on_the_other_copy_stream_that_nobody_used) {
    for (const bool urgent : {true, false}) {
        const Card card;
        {
            const Model model(card, {1536, 1536});
            CHECK(model.prefetch(0, !urgent));
            CHECK(model.prefetch(1, urgent));
            check_order(card);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(the_other_copy_stream_is_waited_for_where_only_the_end_of_a_group_is_shared) {
    const Card card;
    {
        // The last one covers the end of the ring, and its beginning: the first byte of group 0.
        const Model model(card, {1024, 512, 768}, 0, 64 * kKiB);
        CHECK(model.prefetch(0, false));
        CHECK(model.prefetch(2, true));
        const Reader reader(model);
        reader.must_use(2);
        CHECK(!model.streamer->on_its_way(0));
        reader.must_use(1);
        reader.must_use(0);
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

namespace {

void stage_more_chunks_than_slots(Groups kind) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            const Model model(card, {1024, 512, 512}, 0, 256 * kKiB, kind);
            const Reader reader(model);
            CHECK(model.prefetch(0, urgent));  // eight chunks
            reader.must_use(0);
            reader.must_use(1);
            CHECK(model.prefetch(2, !urgent));
            reader.must_use(2);
        }
        check_order(card);
        check_nothing_left();
    }
}

}  // namespace

TEST(packed_chunks_are_decoded_behind_their_copies_and_slots_are_free_again_behind_that) {
    stage_more_chunks_than_slots(Groups::packed);
}

TEST(shares_are_gathered_behind_their_copies_and_slots_are_free_again_behind_that) {
    stage_more_chunks_than_slots(Groups::gathered);
}

TEST(a_copy_waits_for_the_work_at_an_address_that_a_group_was_moved_from) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            Model model(card, {512, 512});
            const Reader reader(model);
            CHECK(model.prefetch(0, false));
            CHECK(model.enter(0, reader.stream));
            CHECK(!model.move({{1, model.groups[0].address}, {0, model.groups[1].address}}));
            card.occupy(reader.stream);
            reader.read(0);
            CHECK(model.leave(0, reader.stream));
            // They change places, and nothing of the first is known at its old one any more.
            CHECK(model.move({{1, model.groups[0].address}, {0, model.groups[1].address}}));
            CHECK(!model.streamer->on_its_way(0));
            CHECK(model.prefetch(1, urgent));
            reader.must_use(1);
            reader.must_use(0);
            check_order(card);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(a_copy_waits_for_what_was_done_with_memory_that_a_group_is_moved_to) {
    for (const bool urgent : {false, true}) {
        const Card card;
        {
            const auto pool = open_pool(card, limited(8));
            const StreamRef stream = card.stream(true);
            Model model(card, {512}, 512);
            const Reader reader(model);
            weights::GivingWay residents(*model.streamer, pool, stream);
            const std::uint64_t before = must_malloc(*pool, kMiB, stream);
            card.occupy(stream);
            card.use(before, kMiB, stream);
            must_free(*pool, before);
            const std::uint64_t block = must_malloc(*pool, kMiB, stream);
            CHECK_EQUAL(block, before);
            CHECK(model.move({{1, block}}, stream.handle));
            residents.settle(1, block, kMiB);
            CHECK(model.prefetch(1, urgent));
            reader.must_use(1);
            check_order(card);
        }
        check_order(card);
    }
}

TEST(memory_of_a_group_that_gives_way_is_used_again_behind_its_work) {
    for (const bool used : {true, false}) {
        const Card card;
        {
            const auto pool = open_pool(card, limited(8));
            const StreamRef stream = card.stream(true), asks = card.stream(true);
            Model model(card, {512}, 512);
            const Reader reader(model);
            weights::GivingWay residents(*model.streamer, pool, stream);
            const std::uint64_t block = must_malloc(*pool, kMiB, stream);
            CHECK(model.move({{1, block}}, stream.handle));
            residents.settle(1, block, kMiB);
            CHECK(model.prefetch(1, false));
            if (used) {
                CHECK(model.enter(1, reader.stream));
                Failure why;
                CHECK_EQUAL(pool->malloc(8 * kMiB, asks, true, why), std::uint64_t{0});
                card.occupy(reader.stream);
                reader.read(1);
                CHECK(model.leave(1, reader.stream));
            }
            const std::uint64_t whole = must_malloc(*pool, 8 * kMiB, asks);
            card.use(whole, 8 * kMiB, asks);
            CHECK_EQUAL(residents.counts().groups, std::uint64_t{1});
            CHECK_EQUAL(residents.counts().bytes, kMiB);
            CHECK(residents.settled().empty());
            // Without memory it cannot be used, until it is in the ring.
            CHECK(!model.enter(1, reader.stream));
            CHECK(!model.prefetch(1, true));
            CHECK(model.move({{1, model.groups[0].address}}));
            reader.must_use(1);
            reader.must_use(0);
            must_free(*pool, whole);
            check_order(card);
        }
        check_order(card);
    }
}

TEST(the_group_that_was_used_last_gives_way_first_and_pinned_ones_stay) {
    const Card card;
    {
        const auto pool = open_pool(card, limited(8));
        const StreamRef stream = card.stream(true), asks = card.stream(true);
        Model model(card, {256, 256, 256, 256});
        const Reader reader(model);
        {
            weights::GivingWay residents(*model.streamer, pool, stream);
            for (const GroupIndex group : {0u, 1u, 2u, 3u}) {
                const std::uint64_t block = must_malloc(*pool, 2 * kMiB, stream);
                CHECK(model.move({{group, block}}, stream.handle));
                residents.settle(group, block, 2 * kMiB);
            }
            for (const GroupIndex group : {2u, 0u, 3u, 1u}) reader.must_use(group);
            model.streamer->pin(3, true);
            const std::uint64_t one = must_malloc(*pool, kMiB, asks);
            CHECK_EQUAL(residents.settled(), (std::vector<GroupIndex>{0, 2, 3}));
            const std::uint64_t two = must_malloc(*pool, 2 * kMiB, asks);
            CHECK_EQUAL(residents.settled(), (std::vector<GroupIndex>{2, 3}));
            must_free(*pool, one);
            must_free(*pool, two);
            model.streamer->pin(3, false);
        }
        // What is left goes back with the object.
        CHECK_EQUAL(pool->live_bytes(), std::uint64_t{0});
        check_order(card);
    }
    check_order(card);
}

TEST(groups_give_way_on_one_thread_while_others_use_them) {
    const Card card;
    {
        const auto pool = open_pool(card, limited(8));
        const StreamRef stream = card.stream(true), asks = card.stream(true);
        Model model(card, {256, 256, 256, 256});
        const Reader one(model), two(model);
        weights::GivingWay residents(*model.streamer, pool, stream);
        std::uint64_t gave_way = 0;
        for (int round = 0; round < testing::rounds(4, 40); ++round) {
            const std::vector<GroupIndex> here = residents.settled();
            for (const GroupIndex group : {0u, 1u, 2u, 3u}) {
                if (std::ranges::find(here, group) != here.end()) continue;
                const std::uint64_t block = must_malloc(*pool, kMiB, stream);
                CHECK(model.move({{group, block}}, stream.handle));
                residents.settle(group, block, kMiB);
            }
            const auto use_all = [&](const Reader& reader, GroupIndex first) {
                CHECK_EQUAL(card.call.cuCtxSetCurrent(card.context), CUDA_SUCCESS);
                for (GroupIndex step = 0; step < 40; ++step) {
                    const GroupIndex group = (first + step) % 4;
                    if (!model.enter(group, reader.stream)) continue;  // it gave way
                    reader.read(group);
                    CHECK(model.leave(group, reader.stream));
                }
            };
            std::thread first([&] { use_all(one, 0); }), second([&] { use_all(two, 2); });
            for (int times = 0; times < 4; ++times) {
                Failure why;
                const std::uint64_t bytes = (5 + times) * kMiB;
                if (const std::uint64_t block = pool->malloc(bytes, asks, true, why)) {
                    card.use(block, bytes, asks);
                    must_free(*pool, block);
                }
            }
            first.join();
            second.join();
            gave_way = residents.counts().groups;
        }
        CHECK(gave_way > 0);
        check_order(card);
    }
    check_order(card);
}

TEST(a_pass_as_scheduled_copies_ahead_and_in_order) {
    const Card card;
    {
        const Model model(card, kUnequal, 700);
        const Reader reader(model);
        std::vector<GroupIndex> order;
        for (GroupIndex group = 0; group < model.count(); ++group) order.push_back(group);
        model.streamer->add(model.schedule(order));
        for (int pass = 0; pass < 3; ++pass) {
            for (const GroupIndex group : order) reader.must_use(group);
        }
        // But for the resident group, everything is copied in every pass, once.
        const std::uint64_t ahead = model.schedule(order).start.size();
        CHECK_EQUAL(model.streamer->counters().misses, std::uint64_t{2});
        CHECK_EQUAL(model.streamer->counters().copies, 3 * kUnequal.size() + 1 + ahead);
        CHECK_EQUAL(model.streamer->counters().off_order, std::uint64_t{0});
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

TEST(what_is_in_use_or_pinned_is_not_overwritten) {
    const Card card;
    {
        const Model model(card, {1536, 1536, 1024});
        const Reader reader(model);
        CHECK(model.enter(0, reader.stream));
        CHECK(!model.prefetch(1, true));
        CHECK(!model.enter(1, reader.stream));
        CHECK(!model.evict(0));
        reader.read(0);
        CHECK(model.leave(0, reader.stream));
        CHECK(!model.leave(0, reader.stream));
        model.streamer->pin(0, true);
        CHECK(!model.prefetch(1, false));
        CHECK(!model.evict(0));
        model.streamer->pin(0, false);
        reader.must_use(1);
        check_order(card);
    }
    check_order(card);
    check_nothing_left();
}

namespace {

// One of several threads that use a model: in the order of a schedule for a while, then here and
// there.
class Worker {
  public:
    Worker(const Model& model, const std::vector<std::vector<GroupIndex>>& orders, unsigned seed)
        : model_(model), orders_(orders), random_(seed) {}

    void run(int rounds) {
        CHECK_EQUAL(model_.card.call.cuCtxSetCurrent(model_.card.context), CUDA_SUCCESS);
        const Reader one(model_), two(model_);
        for (int round = 0; round < rounds; ++round) {
            const std::size_t number = random_() % orders_.size();
            if (one_in(3)) model_.streamer->follow(static_cast<std::uint32_t>(number));
            for (const GroupIndex group : orders_[number]) {
                if (one_in(8)) break;
                use(group, one_in(2) ? one : two);
                if (one_in(3)) act();
            }
            const GroupIndex jump = any();
            // By two streams at once; or by one, twice.
            if (model_.enter(jump, one.stream)) {
                use(jump, one_in(2) ? one : two);
                use(any(), two);
                one.read(jump);
                leave(jump, one.stream);
            }
            unpin();
        }
    }

  private:
    bool one_in(unsigned n) { return random_() % n == 0; }
    GroupIndex any() { return static_cast<GroupIndex>(random_() % model_.count()); }

    void use(GroupIndex group, const Reader& reader) {
        if (!model_.enter(group, reader.stream)) return;
        reader.read(group);
        leave(group, reader.stream);
    }
    // One that fails has not left; the second attempt may only meet another fault.
    void leave(GroupIndex group, const StreamRef& stream) const {
        int attempts = 0;
        while (!model_.leave(group, stream) && ++attempts < 10) CHECK(model_.faults);
        CHECK(attempts < 10);
    }
    void act() {
        const GroupIndex group = any();
        switch (random_() % 4) {
            case 0:
            case 1:
                model_.prefetch(group, one_in(2));
                return;
            case 2:
                model_.evict(group);
                return;
            default:
                unpin();
                if (!model_.prefetch(group, one_in(2))) return;
                model_.streamer->pin(group, true);
                pinned_ = group;
                pins_ = true;
        }
    }
    void unpin() {
        if (pins_) model_.streamer->pin(pinned_, false);
        pins_ = false;
    }

    const Model& model_;
    const std::vector<std::vector<GroupIndex>>& orders_;
    std::mt19937 random_;
    GroupIndex pinned_ = 0;
    bool pins_ = false;
};

void run_random(Model& model, unsigned seed, unsigned threads, int rounds) {
    std::mt19937 random(seed);
    std::vector<std::vector<GroupIndex>> orders(3);
    for (auto& order : orders) {
        for (GroupIndex group = 0; group < model.count(); ++group) order.push_back(group);
    }
    std::reverse(orders[1].begin(), orders[1].end());
    std::shuffle(orders[2].begin(), orders[2].end(), random);
    orders[2].push_back(orders[2].front());
    for (const auto& order : orders) {
        Schedule made = model.schedule(order);
        made.next = static_cast<std::uint32_t>(random() % orders.size());
        model.streamer->add(made);
    }
    std::vector<std::thread> running;
    for (unsigned number = 0; number < threads; ++number) {
        running.emplace_back(
            [&, number] { Worker(model, orders, 1000 * seed + number).run(rounds); });
    }
    for (std::thread& thread : running) thread.join();
}

}  // namespace

TEST(random_orders_are_kept) {
    for (int seed = 0; seed < testing::rounds(20, 200); ++seed) {
        const Card card;
        {
            const std::uint64_t chunk = seed % 2 == 0 ? 256 * kKiB : 4 * kMiB;
            const auto kind = static_cast<Groups>(seed / 2 % 3);
            Model model(card, kUnequal, 400, chunk, kind);
            run_random(model, static_cast<unsigned>(seed), 1 + seed % 3, testing::rounds(6, 20));
            CHECK(model.streamer->counters().copies > 10);
        }
        check_order(card);
        check_nothing_left();
    }
}

TEST(random_orders_are_kept_where_driver_calls_fail) {
    for (int seed = 0; seed < testing::rounds(20, 200); ++seed) {
        const Card card;
        {
            Model model(card, kUnequal, 400, 256 * kKiB, static_cast<Groups>(seed % 3));
            model.faults = true;
            for (const char* call : {"cuMemcpyHtoDAsync", "cuMemcpyAsync", "cuEventRecord",
                                     "cuStreamWaitEvent", "cuLaunchKernel"}) {
                for (std::uint64_t nth = 5; nth < 400; nth += 11 + static_cast<unsigned>(seed)) {
                    CHECK_EQUAL(gpu::sim().inject(call, nth, 1, CUDA_ERROR_UNKNOWN, 0), 0);
                }
            }
            run_random(model, static_cast<unsigned>(seed), 1 + seed % 3, testing::rounds(6, 20));
            gpu::sim().clear_faults();
            CHECK(model.faults_met > 0);
            CHECK(model.streamer->counters().failed > 0);
        }
        check_order(card);
        check_nothing_left();
    }
}
