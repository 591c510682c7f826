// The pool: thread cache -> stream cache of the stream -> idle memory -> memory from the driver.
//
// Stream order. A block is freed at a point of a stream: all its uses are ordered before that
// point.
//   - The same stream may have it again at once, from any thread: what it issues next comes after.
//   - Another stream may have it only when a fence behind that point has passed, or after waiting
//     for that fence on the GPU.
//   - Its memory is unmapped, or mapped at another mapping for others, only when the fence has
//   passed.
//   - A block freed after its stream was destroyed was last used before that: it goes behind the
//     fence that was recorded when the stream was about to go.
//   - What is handed out inside a capture is the graph's: nobody but the same stream of the same
//     capture gets it while a graph of it is left.
//
// Threads. malloc and free take the biased lock of one cache, which nobody contends; what leaves
// the cache takes the lock of its stream's stream cache; all else takes the pool's lock. Order: the
// pool's, a stream cache's, that of usage, events, large blocks or the registry (threads.h), biased
// locks. A thread that holds an biased lock takes no lock and makes no driver call, but for what
// the checker of a simulated GPU is told.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/brief_mutex.h"
#include "base/checker.h"
#include "base/device_sync.h"
#include "base/fork.h"
#include "base/resource.h"
#include "driver/driver.h"
#include "pool/blocks/large_blocks.h"
#include "pool/blocks/page_map.h"
#include "pool/blocks/slabs.h"
#include "pool/config.h"
#include "pool/maintenance/background_thread.h"
#include "pool/memory/addresses.h"
#include "pool/memory/direct.h"
#include "pool/memory/extents.h"
#include "pool/nvtx/nvtx.h"
#include "pool/streams/graph_life.h"
#include "pool/streams/held_blocks.h"
#include "pool/streams/stream_cache.h"
#include "pool/threads/threads.h"
#include "pool/threads/usage.h"
#include "pool/types.h"

namespace vramkit::pool {

class Pool final : public Resource {
  public:
    // The context is the device's primary one, retained by the caller for the life of the pool.
    static std::shared_ptr<Pool> open(std::shared_ptr<Driver> driver, int device, CUcontext context,
                                      const Config& config, Failure& why);
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // 0 and the reason on failure. may_wait: short of memory, wait on the GPU and then on the host.
    std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, bool may_wait, Failure& why);
    std::uint64_t malloc(std::uint64_t bytes, const StreamRef& stream, Failure& why) override {
        return malloc(bytes, stream, true, why);
    }
    // The hot path alone: 0 where the thread's cache cannot serve. Never waits but for a tool,
    // never calls the driver.
    std::uint64_t malloc_cached(std::uint64_t bytes, const StreamRef& stream);

    // No stream: that of the allocation. A given size must be the one asked for. The stream comes
    // by reference: to copy what was just written in parts makes the processor wait for the stores.
    bool free(std::uint64_t address, std::optional<std::uint64_t> bytes,
              const std::optional<StreamRef>& stream, Failure& why) override;
    // Without a stream, for callers that know which one is current and lives: where it is that of
    // the block, its handle is good.
    bool free_beside(std::uint64_t address, const StreamRef& current, Failure& why);
    // The hot path alone, without lock and driver call. bytes 0: not given. slow: nothing was done,
    // and free() must follow, which also says why a block is refused. yes: the block is free; where
    // the cache is over its bounds, `full` says which bin and spill() must follow.
    enum class Freed : std::uint8_t { yes, slow };
    struct Full {
        ThreadCache* cache = nullptr;
        ClassIndex index = 0;
        bool given = false;  // the stream was: its handle is good
    };
    Freed free_cached(std::uint64_t address, std::uint64_t bytes, const StreamRef* stream,
                      Full& full);
    void spill(const Full& full);

    // Every call waits for a tool that is told of blocks (nvtx.h), and whatever that waits for.
    bool has_tool() const { return nvtx_ != nullptr; }

    // The block is used on this stream too: freed, it is held until the stream has got past that
    // point.
    bool also_used_on(std::uint64_t address, const StreamRef& stream, Failure& why);

    bool preallocate(std::uint64_t bytes, std::uint64_t count, Failure& why);
    // Gives idle memory whose work is done back to the driver; wait: all idle memory.
    // The bytes that went.
    std::uint64_t trim(bool wait);
    // Makes one piece of all idle memory. The bytes that were moved for it.
    std::uint64_t defragment(Failure& why);
    // What the background thread does, once: idle memory back after its time, joined where it is in
    // pieces, and some mapped ahead. True: fences are awaited, and more is to do soon.
    bool step();

    // A stream is about to be destroyed: its free blocks get their fence while it lives.
    void stream_closing(std::uint64_t id, CUstream handle) override;
    // After this malloc, free, preallocate and configure fail with `closed`. False: blocks are
    // still live, and nothing was done.
    bool close(Failure& why) override;
    // The driver has forgotten all there was (a reset of the simulated GPU): so does the pool.
    void driver_reset() override;
    bool closed() const override { return closed_.load(std::memory_order_acquire); }
    // True in a child that was forked off the process of the pool: it may do nothing with it.
    bool forked() const { return fork_.forked(); }
    std::uint64_t live_bytes() const override;
    std::uint64_t reserved_bytes() const override;

    Config config() const;
    bool configure(const Config& config, Failure& why);
    Stats stats();
    void reset_stats();
    // Where everything is, for pictures.
    struct Layout;
    Layout layout();
    // What does not hold of the equations of types.h; empty when all is well. Nothing else may run.
    std::string check_invariants();
    std::size_t cache_count() const {
        const std::lock_guard guard(lock_);
        return caches_.size();
    }

    // Of streams and captures that are not over: these are looked at on slow paths.
    std::size_t stream_cache_count() const {
        const std::lock_guard guard(lock_);
        return stream_caches_.size() + arenas_.size();
    }

    // The thread of a cache ends: its blocks go to their stream cache.
    void cache_ending(ThreadCache* cache);
    bool uses(const DriverTable& call) const override { return &call_ == &call; }

  private:
    // Streams are numbered as they come; captures apart, so that a block's number tells.
    static constexpr std::uint32_t kCaptureBit = Block::kMostStreams / 2;
    static bool is_capture(std::uint32_t number) { return (number & kCaptureBit) != 0; }
    struct Known {
        std::shared_ptr<StreamCache> stream_cache;  // null: it has ended, and all its work is done
        std::shared_ptr<GraphLife> graph;           // of a capture
        std::uint64_t capture = 0;
        CUstream handle = nullptr;  // may be dead, unless told
        bool durable = false;
    };
    struct StreamKey {
        std::uint64_t id, capture;
        bool operator==(const StreamKey&) const = default;
    };
    struct StreamHash {
        std::size_t operator()(const StreamKey& key) const {
            return key.id * 0x9e3779b97f4a7c15u ^ key.capture;
        }
    };

    Pool(std::shared_ptr<Driver> driver, int device, CUcontext context, std::uint64_t card_bytes,
         const Config& config);
    ~Pool();  // by open()'s pointer, and never in a forked child

    // Hot paths, with an biased lock.
    std::uint64_t hand_out(ThreadCache& cache, BlockRef block, std::uint64_t bytes,
                           ClassIndex index);
    void take_back(ThreadCache& cache, BlockRef block, std::uint64_t bytes);
    // What a tool is told, without an biased lock: its locks are its own.
    void tell_tool_of_use(const ThreadCache& cache, BlockRef block, std::uint64_t bytes);
    void tell_tool_of_end(const ThreadCache& cache, BlockRef block);
    std::uint64_t find_live(std::uint64_t address, std::optional<std::uint64_t> given,
                            BlockRef& block, Failure& why);
    void count_free(ThreadCache& cache, std::uint64_t bytes);
    struct Freeing {
        std::uint32_t home = 0;  // the stream that has the block then
        std::vector<Use> uses;   // awaited before
    };
    std::optional<Freeing> plan_free(BlockRef block, const std::optional<StreamRef>& stream,
                                     Failure& why);
    std::optional<StreamRef> stream_of_capture(std::uint32_t number);
    void add_use(std::vector<Use>& uses, std::uint32_t number, bool given);
    bool free_slowly(BlockRef block, std::uint64_t bytes, const std::optional<StreamRef>& stream,
                     Full& full, Failure& why);
    bool order_in_capture(const StreamRef& use, const StreamRef& stream);
    bool release_held(bool wait);  // true: any
    std::uint64_t malloc_direct(ThreadCache& cache, std::uint64_t bytes, bool may_wait,
                                Failure& why);
    bool free_direct(std::uint64_t address, const std::optional<StreamRef>& stream, Failure& why);
    bool note_graph(DirectBlock& block, const StreamRef& stream, Failure& why);
    bool return_direct(Direct::Taken& taken, Failure& why);
    std::uint64_t free_ended_direct();  // what graphs had; waits for the card, without the lock

    // caches.cpp and stream caches.cpp: streams, stream caches and caches.
    ThreadCache* cache_of(const StreamRef& stream, Failure& why);
    ThreadCache& cache_of_number(std::uint32_t number);
    std::optional<std::uint32_t> number_of(const StreamRef& stream, Failure& why);
    Known& known(std::uint32_t number);
    ThreadCache* make_cache(std::uint32_t number);
    void retire_ended();
    void retire(ThreadCache* cache);
    void set_bounds(ThreadCache& cache, std::size_t caches_of_thread);
    std::size_t room_for(const ThreadCache& cache, ClassIndex index,
                         bool stream_cached = false) const;
    BlockRef take_from_stream_cache(ThreadCache& cache, ClassIndex index);
    BlockRef split_or_join(const ThreadCache& cache, ClassIndex index,
                           std::uint64_t cut_up_to);  // split_or_join.cpp
    void drain(ThreadCache& cache, bool end = false);
    bool evict_excess(ThreadCache& cache, ClassIndex full);
    template <class Move>
    void evict_bytes(ThreadCache& cache, std::uint64_t most, Move move);
    void end_stream(std::uint32_t number);
    void collect(StreamCache& stream_cache, ClassIndex index, std::size_t most);
    enum class Wait : std::uint8_t { no, for_streams };
    void collect_all(Wait wait);
    bool pass_unfenced();
    void reclaim_caches();
    void drop_ended();

    // slow.cpp and growth.cpp: idle memory, growth, shortage. With the lock held.
    BlockRef malloc_slow(ThreadCache& cache, ClassIndex index, std::uint64_t bytes, bool may_wait,
                         Failure& why);
    BlockRef take_idle(ThreadCache& cache, ClassIndex index);
    void record_fence_while_given(ThreadCache& cache);
    BlockRef take_of_others(ThreadCache& cache, ClassIndex index);
    BlockRef take_after_gpu_wait(const ThreadCache& cache, ClassIndex index);
    BlockRef grow(ThreadCache& cache, ClassIndex index, std::uint64_t bytes, Failure& why);
    BlockRef put_together(ThreadCache& cache, ClassIndex index, std::uint64_t bytes, Failure& why);
    BlockRef put_together_own(const ThreadCache& cache, std::uint64_t bytes,
                              Failure& why);  // remap.cpp
    std::vector<StreamCache::Entry> take_whole(StreamCache& stream_cache, std::uint64_t least,
                                               std::uint64_t most);
    bool add_segment(Failure& why);
    bool preallocate_large(std::uint64_t bytes, std::uint64_t count, Failure& why);
    std::uint64_t next_segment_bytes() const;
    std::uint64_t may_grow() const;
    std::uint64_t handle_bytes() const;
    std::uint64_t cut_up_to(std::uint64_t bytes) const;  // from any thread
    void give_idle(BlockRef block);
    void free_segments(bool dissolve_idle);
    std::uint64_t release_idle(std::int64_t idle_before);
    void note_growth();

    // maintenance.cpp: what happens with time. With the lock held.
    std::int64_t now() const;
    void decay();
    bool collect_leaving();
    void look_at_sizes();
    void map_ahead();
    void want_segment();
    bool has_segment_ahead() const;
    std::int64_t maintain();

    // report.cpp
    Counters add_up();
    struct Free {
        std::uint64_t cached = 0, stream_cached = 0, slabs = 0, spans = 0, extents = 0;
        std::uint64_t unusable = 0;  // for a request of the largest size asked for
        std::uint64_t largest = 0;   // block or extent
    };
    Free free_memory();
    double fragmentation_rate(const Free& free) const;
    void put_in_force(const Config& config);
    std::pair<std::uint64_t, std::int64_t> holds_most_in_use();
    std::string explain(std::uint64_t bytes, const Failure& cause);

    std::uint64_t give_back(bool wait);
    void give_addresses_back();
    void forget_driver();
    void forget_blocks();
    void tell_checker_of_free(const ThreadCache& cache, std::uint64_t address, std::uint64_t bytes,
                              bool held = false);

    const std::uint64_t id_;
    std::shared_ptr<Driver> driver_;
    const DriverTable& call_;
    const int device_;
    const CUcontext context_;
    const ForkGuard fork_;
    const Checker checker_;
    std::unique_ptr<NvtxMarks> nvtx_;     // null: off, or nobody listens
    double (*driver_clock_)() = nullptr;  // of a simulated GPU, nanoseconds
    const std::uint64_t card_bytes_;
    std::unique_ptr<Addresses> addresses_;
    std::unique_ptr<PageMap> page_map_;

    // Read on the hot path, changed by configure().
    alignas(64) std::atomic<const ClassMap*> class_map_{nullptr};
    std::atomic<bool> stats_on_;
    std::atomic<bool> direct_on_;
    std::atomic<std::uint64_t> batch_;
    std::atomic<std::uint64_t> stream_cache_blocks_;
    std::atomic<std::uint64_t> most_bytes_;  // that the pool may have
    std::atomic<bool> closed_{false};
    alignas(64) Usage usage_;  // written now and then: not on the line that all read
    EventPool events_;         // outlives the fences below

    mutable BriefMutex lock_;
    Config config_;
    std::vector<std::unique_ptr<ClassMap>> class_maps_;  // every one that was ever in force
    std::unique_ptr<Extents> extents_;
    SlabRecords records_;
    std::unique_ptr<Slabs> slabs_;
    std::unique_ptr<LargeBlocks> large_;
    std::vector<Known> streams_, captures_;                             // by number, ended ones too
    std::vector<std::shared_ptr<StreamCache>> stream_caches_, arenas_;  // of those that have one
    std::unordered_map<StreamKey, std::uint32_t, StreamHash> numbers_;  // not of ended ones
    std::vector<std::uint32_t> ending_;  // ended, and work of them may be under way
    std::vector<std::unique_ptr<ThreadCache>> caches_;
    Direct direct_;
    HeldBlocks held_blocks_;
    DeviceSync device_sync_;
    bool abandoned_ = false;
    bool segment_wanted_ = false;  // by map_ahead()
    std::uint64_t peak_reserved_ = 0;
    std::int64_t next_decay_ = 0, next_defrag_ = 0;  // 0: at the next step
    ClassIndex largest_ = 0;         // class asked for since the last look, as far as caches told
    ClassIndex largest_before_ = 0;  // in the interval before
    Stats slow_;                     // the counters that only slow paths touch
    Counters ended_;                 // of caches whose threads are gone
    Counters before_;                // all counters at the last reset
    BackgroundThread background_thread_;  // last: it ends first
};

// Where everything is.
struct Pool::Layout {
    enum class Use : std::uint8_t { slabs, block, idle };
    struct OneExtent {
        std::uint64_t address, bytes;
        std::vector<std::uint64_t> pieces;
        Use use;
    };
    struct OneSlab {
        std::uint64_t address, bytes, block_bytes, count;
    };
    struct OneBlock {
        std::uint64_t address, bytes, asked;
        State state;
        std::int64_t stream;  // in `streams`; -1: of none
    };
    struct OneStream {
        std::uint64_t id;
        bool capture, ended;
    };
    std::vector<OneExtent> extents;
    std::vector<OneSlab> slabs;
    std::vector<OneBlock> blocks;
    std::vector<OneStream> streams;
};

}  // namespace vramkit::pool
