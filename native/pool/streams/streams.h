// Every stream and capture that a pool has seen, and the stream caches of those that live.
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

// Streams are numbered as they come. Captures have numbers with a bit of their own, so that the
// number in a block tells which it is.
inline constexpr std::uint32_t kCaptureBit = Block::kMostStreams / 2;
constexpr bool is_capture(std::uint32_t number) { return (number & kCaptureBit) != 0; }

struct StreamRecord {
    std::shared_ptr<StreamCache> cache;  // null: it has ended, and all its work is done
    std::shared_ptr<GraphLife> graph;    // of a capture
    std::uint64_t capture = 0;
    CUstream handle = nullptr;  // may be invalid, unless durable
    bool durable = false;
    bool spare = false;  // its number is unused
};

// With the pool's lock, in its context.
class Streams {
  public:
    Streams(DeviceContext& card, DeviceMemory& memory, Stats& counters)
        : card_(card), memory_(memory), counters_(counters), events_(card.call) {}
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    // The number of a stream that is used now; nullopt and the reason if the pool cannot use it.
    std::optional<std::uint32_t> number_of(const StreamRef& stream, Failure& why);
    StreamRecord& operator[](std::uint32_t number) {
        return is_capture(number) ? captures_[number & ~kCaptureBit] : streams_[number];
    }
    const StreamRecord& operator[](std::uint32_t number) const {
        return const_cast<Streams&>(*this)[number];
    }
    // The number of a live stream; nullopt: the pool has not seen it, or it has ended.
    std::optional<std::uint32_t> find(std::uint64_t id) const;

    // Stream caches of streams and of captures that have not ended: slow paths visit all of them.
    using Caches = std::vector<std::shared_ptr<StreamCache>>;
    const Caches& caches() const { return caches_; }
    const Caches& arenas() const { return arenas_; }
    template <class Visit>
    void each_cache(Visit visit) const {
        for (const auto* list : {&caches_, &arenas_}) {
            for (const auto& each : *list) visit(*each);
        }
    }
    // In the order of their numbers, with those that have ended.
    const std::vector<StreamRecord>& streams() const { return streams_; }
    const std::vector<StreamRecord>& captures() const { return captures_; }

    // Moves blocks whose work is done from a stream cache, whose lock is held, to idle memory: so
    // many of the oldest of a small class, large ones of its ranges or those that leave, or all.
    void collect(StreamCache& cache, ClassIndex index, std::size_t most);
    void collect(StreamCache& cache, FreeRanges& ranges);
    void collect(StreamCache& cache, bool with_ranges);
    // All, of all streams; of one of them only small blocks. Records fences where that is allowed.
    void collect_all(const StreamCache* keeps_ranges);
    // Waits for all work that the streams hold now. The pool's lock is released for the wait, so
    // that host functions and other threads can free: the pool's state may have changed after it.
    // False: there was nothing to wait for.
    bool wait(std::unique_lock<BriefMutex>& pool);
    // For blocks without a fence, freed on raw streams whose handles may be invalid by now: only a
    // device sync helps. Releases the pool's lock for it. True: it waited, and what had no fence
    // before counts as passed.
    bool wait_for_unfenced(std::unique_lock<BriefMutex>& pool, bool for_others);

    void give_idle(BlockRef block) { memory_.give_idle(block); }

    // The stream is about to be destroyed: records its last fence while it lives.
    void end(std::uint32_t number);
    // Captures that have not ended here, but whose graphs are gone.
    std::vector<std::uint32_t> captures_that_are_over() const;
    // Drops the stream caches of ended streams whose work is done: their blocks become idle.
    void drop_ended();
    // A stream is about to be destroyed: captures made on it must not use its handle any more.
    void handle_closing(CUstream handle);

    // Whether there are so many numbers that it pays to look for unused ones. is_known(number) says
    // whether a block or a thread cache refers to a number.
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
    // After a reset: the driver no longer knows our events; no free block may be handed out again.
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
    std::vector<StreamRecord> streams_, captures_;               // by number, also ended ones
    std::vector<std::uint32_t> spare_streams_, spare_captures_;  // without the bit
    std::size_t look_at_ = kLookAtLeast;
    Caches caches_, arenas_;
    std::unordered_map<Key, std::uint32_t, Hash> numbers_;                 // only live ones
    std::unordered_multimap<CUstream, std::uint32_t> captures_by_handle_;  // also ended ones
    std::vector<std::uint32_t> ending_;  // ended, but their work may still run
};

}  // namespace vramkit::pool
