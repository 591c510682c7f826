// The pool's structures and their invariants.
//
//   piece          a handle of the driver, mapped at an address (pieces.h)
//   range          a run of spans of 64 KiB in mapped memory: a large block, in use or free, or the
//                  memory of a slab (ranges.h)
//   slab           equal small blocks on one range (slabs.h)
//   block          what the user gets; known by its slab and its number there
//   thread cache   free blocks of one thread and stream, by class
//   stream cache   free blocks of one stream, small ones by class, large ones as free ranges, each
//                  behind a fence of that stream (stream_cache.h)
//
// Each block is in exactly one state, and in exactly one list:
//   live           with the user
//   shared         with the user, and used on other streams too
//   held           freed, but work of those streams may still run (held_blocks.h)
//   cached         in the bin of its class in one thread cache
//   stream-cached  in the bin of its class, or among the free ranges, of one stream cache
//   idle           in the list of its slab, or among the idle ranges; free for any stream
//
// Equations, checked by Pool::check_invariants when no other thread uses the pool:
//   blocks of a slab   = live or shared + held + cached + stream-cached + idle of that slab
//   cache.bytes        = sum over its bins of the blocks' bytes, in thread and stream caches
//   mapped bytes       = slabs + ranges: each span is in exactly one
//   reserved bytes     = mapped bytes + pieces whose release was postponed
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/failure.h"
#include "base/fences.h"
#include "base/host_memory.h"
#include "base/stream_ref.h"
#include "driver/table.h"
#include "pool/blocks/class_set.h"
#include "pool/blocks/size_classes.h"
#include "pool/memory/extent.h"
#include "pool/threads/biased_lock.h"

namespace vramkit::pool {

enum class State : std::uint8_t {
    idle = 0,
    live = 1,
    cached = 2,
    stream_cached = 3,
    shared = 4,
    held = 5
};

// A block's record: state, stream and requested size in one word, so that a change of state is one
// atomic exchange and every double free is detected.
class Block {
  public:
    static constexpr std::uint32_t kMostStreams = std::uint32_t{1} << 24;

    State state() const { return static_cast<State>(lock_.load(std::memory_order_acquire) >> 56); }
    std::uint32_t stream() const {
        return static_cast<std::uint32_t>(lock_.load(std::memory_order_relaxed) >> 32) & 0xffffff;
    }
    std::uint32_t bytes() const {
        return static_cast<std::uint32_t>(lock_.load(std::memory_order_relaxed));
    }
    // For a block that no other thread can reach.
    void set(State state, std::uint32_t stream, std::uint32_t bytes) {
        lock_.store(std::uint64_t{static_cast<std::uint8_t>(state)} << 56 |
                        std::uint64_t{stream & 0xffffff} << 32 | bytes,
                    std::memory_order_release);
    }
    bool with_user() const { return state() == State::live || state() == State::shared; }
    // From one state to another; of several threads that try, exactly one succeeds.
    bool change(State from, State to) {
        constexpr std::uint64_t kState = std::uint64_t{0xff} << 56;
        std::uint64_t seen = lock_.load(std::memory_order_acquire);
        while (static_cast<State>(seen >> 56) == from) {
            const std::uint64_t next =
                (seen & ~kState) | std::uint64_t{static_cast<std::uint8_t>(to)} << 56;
            if (lock_.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) return true;
        }
        return false;
    }
    bool take_from_user() { return change(State::live, State::cached); }

  private:
    std::atomic<std::uint64_t> lock_{0};
};

class FreeRanges;

// A field that is read without a lock, while the thread that holds the lock may change it.
// Costs a plain load or store.
template <class Value>
class Relaxed {
  public:
    Relaxed(Value value = {}) : value_(value) {}
    Relaxed& operator=(Value value) {
        value_.store(value, std::memory_order_relaxed);
        return *this;
    }
    operator Value() const { return value_.load(std::memory_order_relaxed); }
    // For the one thread that may write it.
    Relaxed& operator+=(Value value) { return *this = *this + value; }
    Relaxed& operator-=(Value value) { return *this = *this - value; }

  private:
    std::atomic<Value> value_;
};

// Blocks of one size, or a range. The fields that the hot path reads fill the first cache line. The
// record is reused for later slabs (SlabRecords), and valid as long as the pool.
struct alignas(64) Slab {
    Relaxed<std::uint64_t> address;
    Relaxed<std::uint64_t> block_bytes;
    Relaxed<std::uint64_t> reciprocal;  // 2^32 / units of a block, rounded up; 0: only one block
    Block* const blocks;
    Relaxed<std::uint32_t> count;
    Relaxed<ClassIndex> index;     // the class of its blocks
    Relaxed<std::uint64_t> asked;  // of a large block: what the user asked for
    Block only;                    // of a range
    Relaxed<bool> large;           // one block, which is a range
    // Records of larger blocks have a cache line each: neighbours often belong to other threads.
    const std::uint8_t spread;         // records are 2^spread apart
    const std::uint8_t capacity_bits;  // there are 2^capacity_bits records
    bool fresh = false;                // of a free range: put there since neighbours were joined
    // Of a range: where it is free, and its links and fence there, with the lock of that set.
    alignas(64) Relaxed<const FreeRanges*> free_in;
    Relaxed<std::uint64_t> bytes;  // of its spans
    Slab* next = nullptr;
    Slab* before = nullptr;
    Slab* fresh_next = nullptr;
    Slab* fresh_before = nullptr;
    Fences::Number fence = 0;
    // With the pool's lock; of a range, with that of ranges.
    std::size_t slot = kNowhere;      // index in the list of slabs of its class with idle blocks,
                                      // or in that of ranges
    std::vector<std::uint32_t> idle;  // numbers of idle blocks

    static constexpr std::size_t kNowhere = ~std::size_t{0};
    static constexpr std::uint64_t kSpreadFrom = 4096;

    Slab(std::uint8_t spread_, std::uint8_t capacity_bits_)
        : blocks(capacity_bits_ == 0 ? &only
                                     : new Block[std::size_t{1} << (capacity_bits_ + spread_)]),
          spread(spread_),
          capacity_bits(capacity_bits_) {}
    ~Slab() {
        if (blocks != &only) delete[] blocks;
    }
    Slab(const Slab&) = delete;
    Slab& operator=(const Slab&) = delete;
    static std::uint8_t spread_of(std::uint64_t block_bytes) {
        return block_bytes >= kSpreadFrom ? 3 : 0;
    }
    // The size that the user asked for, of a live block.
    std::uint64_t asked_for(const Block& block) const {
        if (large) return asked;
        return block.bytes();
    }
    Extent extent() const { return {address, bytes}; }
    Block& record(std::uint32_t number) const { return blocks[std::size_t{number} << spread]; }
    // Division by multiplication: exact below 32 MiB.
    std::uint64_t number_at(std::uint64_t inside) const {
        return (inside / kUnit * reciprocal) >> 32;
    }
};

struct BlockRef {
    Slab* slab = nullptr;
    std::uint32_t number = 0;

    std::uint64_t address() const { return slab->address + number * slab->block_bytes; }
    std::uint64_t bytes() const { return slab->block_bytes; }
    Block& block() const { return slab->record(number); }
};

// Counters of one cache, written under its biased lock and added up on demand.
struct Counters {
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t allocated_bytes = 0;
    std::uint64_t freed_bytes = 0;
    std::uint64_t hits = 0;

    void add(const Counters& other) {
        allocations += other.allocations;
        frees += other.frees;
        allocated_bytes += other.allocated_bytes;
        freed_bytes += other.freed_bytes;
        hits += other.hits;
    }
};

class StreamCache;

// Free blocks of one thread and stream. Its thread takes the biased lock for every use, so that
// another thread can empty the cache of an idle one.
struct alignas(64) ThreadCache {
    struct Bin {
        std::vector<BlockRef> blocks;
        std::uint32_t low = 0;                 // fewest since the last turnover
        std::uint32_t low_before = kNoBlocks;  // fewest from the last decay to that turnover

        static constexpr std::uint32_t kNoBlocks = ~std::uint32_t{0};

        std::uint32_t size() const { return static_cast<std::uint32_t>(blocks.size()); }
        // How many blocks were never needed since the last decay.
        std::uint32_t unneeded() const { return std::min(low, low_before); }
        // Removes the oldest, which count as not needed.
        void drop_oldest(std::uint32_t count) {
            blocks.erase(blocks.begin(), blocks.begin() + count);
            low -= std::min(low, count);
            if (low_before != kNoBlocks) low_before -= std::min(low_before, count);
        }
        void drop_all() {
            blocks.clear();
            low = 0;
            if (low_before != kNoBlocks) low_before = 0;
        }
        void note_turnover() {
            low_before = unneeded();
            low = size();
        }
        void note_look() {
            low_before = kNoBlocks;
            low = size();
        }
    };

    BiasedLock lock;
    std::uint32_t number = 0;  // of the stream
    StreamRef stream;
    std::shared_ptr<StreamCache> stream_cache;  // null: made when the stream was long gone
    std::size_t caches_of_thread = 1;
    bool ended = false;  // the stream has ended: what is freed here leaves at once
    Relaxed<std::uint64_t> bytes;
    std::int64_t live = 0;         // bytes handed out less bytes taken back
    std::int64_t allowance = 0;    // `live` may rise to this without a report (usage.h)
    std::int64_t spare_below = 0;  // if `live` is below this, the allowance is too large
    std::int64_t slack = 0;        // part of it that is above the peak; with the lock of usage
    std::uint64_t spilled = 0;     // bytes since the last turnover
    ClassSet filled;               // no other class has blocks here; some of these may have none
    std::uint64_t worth = kMuch;   // bytes that the last block of a class may have (evict_bytes)
    std::uint64_t largest = 0;     // most bytes asked for at once since reset_largest()
    Counters counters;
    std::atomic<std::uint64_t> most_blocks{0};  // of one class
    std::atomic<std::uint64_t> most_bytes{0};
    std::atomic<ClassIndex> first_large{0};  // from this class on, blocks leave at once
    std::array<Bin, kClasses> bins;

    static constexpr std::uint64_t kMuch = std::uint64_t{1} << 62;

    // Holds the biased lock for a scope.
    template <void (BiasedLock::*begin)(), void (BiasedLock::*end)()>
    class Scope {
      public:
        explicit Scope(ThreadCache& cache) : lock_(cache.lock) { (lock_.*begin)(); }
        ~Scope() { (lock_.*end)(); }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

      private:
        BiasedLock& lock_;
    };
    using Entered = Scope<&BiasedLock::enter, &BiasedLock::leave>;   // for its own thread
    using Visited = Scope<&BiasedLock::visit, &BiasedLock::let_go>;  // for any
    bool has_ended() {
        const Entered entered(*this);
        return ended;
    }
    // So that the next pushes of this class cannot fail.
    void make_room(ClassIndex index, std::size_t count = 1) {
        auto& blocks = bins[index].blocks;
        if (blocks.capacity() - blocks.size() < count) [[unlikely]]
            blocks.reserve(2 * blocks.size() + std::max<std::size_t>(count, 8));
    }

    // The same, for callers that can do without.
    bool try_to_make_room(ClassIndex index, std::size_t count = 1) {
        return if_host_memory_allows([&] { make_room(index, count); });
    }

    // With the lock: whether blocks have to leave, of this class or of any.
    bool is_over_bounds(ClassIndex index) const {
        return bins[index].blocks.size() > most_blocks.load(std::memory_order_relaxed) ||
               bytes > most_bytes.load(std::memory_order_relaxed) ||
               index >= first_large.load(std::memory_order_relaxed) || ended;
    }

    // Adds a block that no work uses.
    void keep(BlockRef block) {
        block.block().set(State::cached, number, 0);
        push(block);
    }
    void push(BlockRef block) {
        const ClassIndex index = block.slab->index;
        bins[index].blocks.push_back(block);
        filled.set(index);
        bytes += block.bytes();
    }
};

// Holds the biased locks of several caches, by one barrier: a consistent view of all of them.
template <class Caches>
class AllVisited {
  public:
    explicit AllVisited(const Caches& caches) : caches_(caches) {
        for (const auto& each : caches_) each->lock.knock();
        BiasedLock::put_barrier();
        for (const auto& each : caches_) each->lock.wait_for_owner();
    }
    ~AllVisited() {
        for (const auto& each : caches_) each->lock.let_go();
    }
    AllVisited(const AllVisited&) = delete;
    AllVisited& operator=(const AllVisited&) = delete;

  private:
    const Caches& caches_;
};

}  // namespace vramkit::pool
