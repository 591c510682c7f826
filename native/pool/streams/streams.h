// Every stream and capture that a pool has seen, and what is kept for those that live.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/device_sync.h"
#include "base/event_pool.h"
#include "pool/device_context.h"
#include "pool/memory/device_memory.h"
#include "pool/streams/graph_life.h"
#include "pool/streams/stream_cache.h"

namespace vramkit::pool {

// Streams are numbered as they come; captures apart, so that a block's number tells.
inline constexpr std::uint32_t kCaptureBit = Block::kMostStreams / 2;
constexpr bool is_capture(std::uint32_t number) { return (number & kCaptureBit) != 0; }

struct StreamRecord {
    std::shared_ptr<StreamCache> cache;  // null: it has ended, and all its work is done
    std::shared_ptr<GraphLife> graph;    // of a capture
    std::uint64_t capture = 0;
    CUstream handle = nullptr;  // may be dead, unless durable
    bool durable = false;
    bool spare = false;  // nobody knows its number any more
};

// With the pool's lock, in its context.
class Streams {
  public:
    Streams(DeviceContext& card, DeviceMemory& memory, Stats& counters)
        : card_(card), memory_(memory), counters_(counters), events_(card.call) {}
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    // The number of a stream that is used now; nullopt and the reason where it is none of ours.
    std::optional<std::uint32_t> number_of(const StreamRef& stream, Failure& why);
    StreamRecord& operator[](std::uint32_t number) {
        return is_capture(number) ? captures_[number & ~kCaptureBit] : streams_[number];
    }
    const StreamRecord& operator[](std::uint32_t number) const {
        return const_cast<Streams&>(*this)[number];
    }
    // Of a stream that lives; nullopt: the pool has not seen it, or it has ended.
    std::optional<std::uint32_t> find(std::uint64_t id) const;

    // Stream caches of streams and of captures that are not over: slow paths look at these.
    using Caches = std::vector<std::shared_ptr<StreamCache>>;
    const Caches& caches() const { return caches_; }
    const Caches& arenas() const { return arenas_; }
    template <class Visit>
    void each_cache(Visit visit) const {
        for (const auto* list : {&caches_, &arenas_}) {
            for (const auto& each : *list) visit(*each);
        }
    }
    // In the order of numbers, captures after streams; ended ones too.
    const std::vector<StreamRecord>& streams() const { return streams_; }
    const std::vector<StreamRecord>& captures() const { return captures_; }

    // From a stream cache, whose lock is held, to idle memory: the oldest blocks whose work is
    // done.
    void collect(StreamCache& cache, ClassIndex index, std::size_t most);
    // Whatever is done, of all streams.
    void collect_all();
    // Waits for all that the streams hold now, without the pool's lock: host functions and other
    // threads that free meanwhile go on. What was looked at before may have changed.
    void wait(std::unique_lock<BriefMutex>& pool);
    // Blocks of raw streams that nobody spoke of lately: their handles may mean anything by now,
    // and only the whole card can be waited for. Waits without the pool's lock. True: it was waited
    // for, and what had no fence before has passed.
    bool wait_for_unfenced(std::unique_lock<BriefMutex>& pool, bool for_others);

    void give_idle(BlockRef block) { memory_.give_idle(block); }

    // Nothing new comes from the stream: its last fence, while it lives.
    void end(std::uint32_t number);
    // Captures whose graphs are gone, and that have not ended yet.
    std::vector<std::uint32_t> captures_that_are_over() const;
    // Ended streams whose work is done need no stream cache: what they have becomes idle.
    void drop_ended();
    // Captures that were made on it go by its handle.
    void handle_closing(CUstream handle);

    // Whether so many records are there that it pays to look which numbers are still known:
    // is_known(number) for those of blocks and thread caches.
    bool should_reuse_numbers() const { return known_numbers() >= look_at_; }
    template <class IsKnown>
    void reuse_numbers(IsKnown is_known) {
        for (const std::uint32_t bit : {std::uint32_t{0}, kCaptureBit}) {
            auto& records = bit == 0 ? streams_ : captures_;
            for (std::uint32_t i = 0; i < records.size(); ++i) {
                StreamRecord& record = records[i];
                if (record.spare || record.cache != nullptr || is_known(i | bit)) continue;
                forget_handle(record.handle, i | bit);
                record = {};
                record.spare = true;
                (bit == 0 ? spare_streams_ : spare_captures_).push_back(i);
            }
        }
        const std::size_t known =
            streams_.size() + captures_.size() - spare_streams_.size() - spare_captures_.size();
        look_at_ = std::max(kLookAtLeast, 2 * known);
    }

    EventPool& events() { return events_; }
    DeviceSync& device_sync() { return device_sync_; }
    // The driver no longer knows anything. No block that was free is had again.
    void forget_driver();
    void drop_blocks();
    void clear();

  private:
    struct Key {
        std::uint64_t id, capture;
        bool operator==(const Key&) const = default;
    };
    struct Hash {
        std::size_t operator()(const Key& key) const {
            return key.id * 0x9e3779b97f4a7c15u ^ key.capture;
        }
    };
    static constexpr std::size_t kLookAtLeast = 1024;

    std::size_t known_numbers() const {
        return streams_.size() + captures_.size() - spare_streams_.size() - spare_captures_.size();
    }

    std::optional<std::uint32_t> new_number(bool capture, Failure& why);
    void forget_handle(CUstream handle, std::uint32_t number);

    DeviceContext& card_;
    DeviceMemory& memory_;
    Stats& counters_;
    EventPool events_;  // outlives the fences below
    DeviceSync device_sync_{card_.call, card_.checker};
    std::vector<StreamRecord> streams_, captures_;               // by number, ended ones too
    std::vector<std::uint32_t> spare_streams_, spare_captures_;  // without the bit
    std::size_t look_at_ = kLookAtLeast;
    Caches caches_, arenas_;
    std::unordered_map<Key, std::uint32_t, Hash> numbers_;                 // not of ended ones
    std::unordered_multimap<CUstream, std::uint32_t> captures_by_handle_;  // ended ones too
    std::vector<std::uint32_t> ending_;  // ended, and work of them may be under way
};

}  // namespace vramkit::pool
