// The streamer of weights on the simulated GPU: a ring with groups around it, and work that reads
// them and says whether they were whole.
#ifndef VRAMKIT_TESTS_NATIVE_WEIGHTS_BENCH_H
#define VRAMKIT_TESTS_NATIVE_WEIGHTS_BENCH_H

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "pool_bench.h"
#include "weights/decoder.h"
#include "weights/giving_way.h"
#include "weights/packing.h"
#include "weights/streamer.h"

namespace weights_bench {

using namespace bench;
using weights::Copied;
using weights::GroupIndex;
using weights::GroupSource;
using weights::Ring;
using weights::Schedule;
using weights::Streamer;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kRing = 2 * kMiB;
constexpr std::uint64_t kLargest = 1536 * kKiB;

enum class Groups : std::uint8_t { plain, packed, gathered };

// Fills a chunk's place from a share of it, as gathering from other processes does.
class Gathering final : public weights::Expander {
  public:
    explicit Gathering(const DriverTable& call) : call_(call) {}
    bool expand(const weights::StagedChunk& staged, Failure& why) override {
        const weights::Chunk& chunk = staged.chunk;
        for (std::uint64_t at = 0; at < chunk.bytes; at += chunk.stored) {
            if (failed(call_.cuMemcpyAsync(staged.destination + at, staged.staging, chunk.stored,
                                           staged.stream),
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

}  // namespace weights_bench

#endif
