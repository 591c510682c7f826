// Every structure of the pool, with what is promised about it.
//
//   range    one reservation of addresses a pool; its page map finds the chunk of any pointer
//   chunk    one piece of mapped memory: a slab of equal blocks, or one large block
//   block    what the user gets; known by its chunk and its number there
//   cache    free blocks of one (thread, stream), by class
//   batch    free blocks that left a cache together, with one completion mark for all
//
// Each block is in exactly one state, and in exactly one place:
//   live                   with the user
//   cached                 in the bin of its class in one cache
//   waiting                in a batch of its class at the global level
//   fresh                  in the list of its class of blocks never handed out since they were
//   mapped
//
// Equations, checked by Pool::check_invariants when nothing else runs:
//   blocks of a chunk      = live + cached + waiting + fresh of that chunk
//   chunk.idle             = waiting + fresh of that chunk
//   cache.bytes            = sum over its bins of blocks * class_bytes
//   reserved bytes         = sum over chunks of chunk.bytes
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "driver/table.h"
#include "pool/size_classes.h"

namespace vramkit::pool {

// A stream as the pool knows it: handles are used again by the driver, ids never.
struct StreamRef {
    CUstream handle = nullptr;
    std::uint64_t id = 0;
    // The pool is told before the stream is destroyed: marks can be put off until somebody needs
    // one.
    bool told = false;
};

enum class State : std::uint8_t { fresh = 0, live = 1, cached = 2, waiting = 3 };

// A block's record: state, stream and asked-for size in one word, so that taking it from one state
// to another is one exchange and a double free never goes unseen.
class Block {
  public:
    static constexpr std::uint64_t kMostStreams = std::uint64_t{1} << 24;

    State state() const { return static_cast<State>(word_.load(std::memory_order_acquire) >> 56); }
    std::uint32_t stream() const {
        return static_cast<std::uint32_t>(word_.load(std::memory_order_relaxed) >> 32) & 0xffffff;
    }
    std::uint32_t bytes() const {
        return static_cast<std::uint32_t>(word_.load(std::memory_order_relaxed));
    }
    // For the holder of a block that nobody else can reach.
    void set(State state, std::uint32_t stream, std::uint32_t bytes) {
        word_.store(pack(state, stream, bytes), std::memory_order_release);
    }
    // live -> cached by exactly one of several threads that try.
    bool take_from_user() {
        std::uint64_t seen = word_.load(std::memory_order_acquire);
        while (static_cast<State>(seen >> 56) == State::live) {
            const std::uint64_t next = (seen & ~(std::uint64_t{0xff} << 56)) | std::uint64_t{2}
                                                                                   << 56;
            if (word_.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) return true;
        }
        return false;
    }

  private:
    static std::uint64_t pack(State state, std::uint32_t stream, std::uint32_t bytes) {
        return std::uint64_t{static_cast<std::uint8_t>(state)} << 56 |
               std::uint64_t{stream & 0xffffff} << 32 | bytes;
    }
    std::atomic<std::uint64_t> word_{0};
};

// Mapped memory of one class. A slab has many blocks; a large chunk is one block.
struct Chunk {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // mapped, and reserved from the driver
    std::uint64_t block_bytes = 0;
    ClassIndex index = 0;
    std::uint32_t count = 0;
    std::uint32_t idle = 0;  // blocks at the global level; all of them: may be given back
    CUmemGenericAllocationHandle handle = 0;
    std::uint64_t asked = 0;  // of a large block: bytes the user asked for
    std::unique_ptr<Block[]> blocks;
};

struct BlockRef {
    Chunk* chunk = nullptr;
    std::uint32_t number = 0;

    std::uint64_t address() const { return chunk->address + number * chunk->block_bytes; }
    Block& block() const { return chunk->blocks[number]; }
};

// Counters of one cache, written under its owner word and added up on demand.
struct Counters {
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t allocated_bytes = 0;
    std::uint64_t freed_bytes = 0;
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;

    void add(const Counters& other) {
        allocations += other.allocations;
        frees += other.frees;
        allocated_bytes += other.allocated_bytes;
        freed_bytes += other.freed_bytes;
        hits += other.hits;
        misses += other.misses;
    }
};

// Free blocks of one thread and stream. The owner word is taken for every use by one exchange that
// nobody contends, so that another thread can take an idle cache's blocks when memory is short.
struct alignas(64) Cache {
    std::atomic<bool> taken{false};
    std::uint32_t number = 0;  // of the stream, in Pool::streams_
    StreamRef stream;
    bool ended = false;  // the stream is destroyed: what is freed here leaves at once
    std::uint64_t bytes = 0;
    std::int64_t unreported = 0;  // live bytes not yet in Pool::live_bytes_
    Counters counters;
    std::array<std::vector<BlockRef>, kClasses> bins;

    bool take() { return !taken.exchange(true, std::memory_order_acquire); }
    // The holder moves blocks or adds up, a matter of nanoseconds: nobody makes a driver call with
    // it.
    void take_for_sure() {
        while (!take()) std::this_thread::yield();
    }
    void leave() { taken.store(false, std::memory_order_release); }
    bool has_ended() {
        take_for_sure();
        const bool result = ended;
        leave();
        return result;
    }
};

// Why a request was not served.
struct Failure {
    enum class Kind : std::uint8_t { none, bad_value, closed, forked, out_of_memory, driver };
    Kind kind = Kind::none;
    CUresult code = CUDA_SUCCESS;
    std::string call;     // of the driver, where it was one
    std::string message;  // for the user
};

}  // namespace vramkit::pool
