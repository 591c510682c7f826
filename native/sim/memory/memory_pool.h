// Stream-ordered memory: the pools behind cuMemAllocAsync.
//
// A pool holds chunks of device memory and cuts blocks from them. A block freed on a stream leaves
// a hole that stream may fill again at once. Others may, as the pool's attributes allow, where they
// are ordered after the free (events, the legacy stream) or where the free has been reached; when
// the card is full, also by waiting for it. Once the host has synchronised, a reached free counts
// for nobody in particular any more. A block freed by the host, with cuMemFree, stays what it was
// until then, or until the pool is trimmed.
//
// Invariants: the blocks, those freed by the host and the holes of a chunk cover it without
// overlap; reserved is the sum of the chunks, used that of the bytes asked for in blocks of both
// kinds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "driver/cuda_abi.h"
#include "sim/time/operation.h"

namespace vramkit::sim {

struct Context;
class Machine;

// A block of cuMemAllocAsync.
struct PoolBlock {
    std::uint64_t bytes = 0;      // asked for
    std::uint64_t footprint = 0;  // taken
    std::uint64_t chunk = 0;      // address of the chunk it lies in
    Context* context = nullptr;   // of the stream it was allocated on
    std::uint64_t id = 0;
    Site site;
};

class MemoryPool {
  public:
    MemoryPool(Machine& machine, const CUmemPoolProps& given)
        : properties(given), machine_(machine) {}

    // What an allocation got. address 0: nothing.
    struct Grant {
        std::uint64_t address = 0;
        std::uint64_t grown = 0;          // bytes newly taken from the card
        std::vector<Operation*> awaited;  // unreached frees that the stream must wait for
    };
    // Whether work issued on the allocating stream now runs after an unfinished operation.
    using OrderedAfter = std::function<bool(const Operation*)>;

    // Linear in the number of holes.
    Grant allocate(std::uint64_t bytes, Context* context, std::uint64_t stream, const Site& site,
                   const OrderedAfter& ordered_after);
    // `reached` tells when the stream gets to the free; null: it is over already.
    void free(std::uint64_t address, std::uint64_t stream, std::shared_ptr<Milestone> reached);
    // cuMemFree: the block is nobody's, but its memory comes back only when the host synchronises.
    void free_by_host(std::uint64_t address);
    void free_blocks_of(const Context* context);

    // The host has waited: reached frees are everybody's.
    void settle();
    // Gives idle chunks back to the card while at least `keep` bytes stay; their sizes.
    std::vector<std::uint64_t> trim(std::uint64_t keep);

    // The block that contains an address; address and null for none.
    std::pair<std::uint64_t, const PoolBlock*> block_around(std::uint64_t address) const;
    std::size_t blocks() const { return blocks_.size(); }
    template <class Visit>
    void each_open(Visit visit) const {
        for (const auto& [address, block] : blocks_) visit(block.site, block.bytes);
    }
    // Neither blocks nor frees that are still to be reached.
    bool idle() const;

    const CUmemPoolProps properties;
    bool follow_events = true;
    bool opportunistic = true;
    bool internal_dependencies = true;
    std::uint64_t threshold = 0;
    std::uint64_t reserved = 0;
    std::uint64_t reserved_high = 0;
    std::uint64_t used = 0;
    std::uint64_t used_high = 0;

  private:
    struct Hole {
        std::uint64_t end = 0;
        std::uint64_t stream = 0;            // that freed it
        std::shared_ptr<Milestone> reached;  // null: nobody's in particular
    };
    using Holes = std::map<std::uint64_t, Hole>;
    struct Chunk {
        std::uint64_t bytes = 0;
        std::size_t live = 0;
        Holes holes;
    };
    using Usable = std::function<bool(const Hole&)>;

    // The smallest run of usable neighbouring holes that holds the bytes.
    std::pair<Chunk*, std::uint64_t> best_fit(std::uint64_t bytes, const Usable& usable);
    // Takes a stretch out of the holes of a chunk; notes the frees it has to wait for.
    static void cut(Chunk& chunk, std::uint64_t address, std::uint64_t bytes, Grant& grant);
    static bool alike(const Hole& a, const Hole& b);
    static void join_holes(Holes& holes);
    Chunk* grow(std::uint64_t bytes, Grant& grant);
    void open_hole(std::uint64_t address, const PoolBlock& block, std::uint64_t stream,
                   std::shared_ptr<Milestone> reached);
    // Makes holes of what the host has freed. Also done when memory is short.
    void take_back();

    Machine& machine_;
    std::map<std::uint64_t, Chunk> chunks_;
    std::map<std::uint64_t, PoolBlock> blocks_;
    std::map<std::uint64_t, PoolBlock> freed_by_host_;
};

// All pools of a machine.
class Pools {
  public:
    explicit Pools(Machine& machine) : machine_(machine) {}

    MemoryPool& default_of(int device);
    MemoryPool& current_of(int device);
    void make_current(int device, MemoryPool* pool);
    // Null where the handle is not a live pool.
    MemoryPool* find(CUmemoryPool handle);
    MemoryPool* make(const CUmemPoolProps& properties);
    bool is_default(const MemoryPool* pool) const;
    // The memory stays until its last block is freed.
    void destroy(MemoryPool* pool);

    struct Found {
        MemoryPool* pool = nullptr;
        std::uint64_t address = 0;
        const PoolBlock* block = nullptr;
    };
    Found block_around(std::uint64_t address) const;

    // The host has synchronised: memory beyond the thresholds goes back; the sizes of its chunks.
    std::vector<std::uint64_t> synchronised();
    // Gives back whatever is idle on a device.
    void trim_all(int device);
    void free_blocks_of(const Context* context);

    std::uint64_t next_block_id() { return next_block_id_++; }
    std::size_t created() const { return created_.size(); }
    std::size_t blocks() const;
    // visit(site, bytes) for each block that is open.
    void each_open(const std::function<void(const Site&, std::uint64_t)>& visit) const;

  private:
    template <class Visit>
    void each(Visit visit) const;
    void bury();

    Machine& machine_;
    std::map<int, std::unique_ptr<MemoryPool>> defaults_;
    std::map<int, MemoryPool*> current_;
    std::map<MemoryPool*, std::unique_ptr<MemoryPool>> created_;
    std::vector<std::unique_ptr<MemoryPool>> dying_;  // destroyed, with blocks left
    std::uint64_t next_block_id_ = std::uint64_t{1} << 32;
};

}  // namespace vramkit::sim
