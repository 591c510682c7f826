// Device memory of one program that can leave the card and come back to the same addresses.
//
// 1. An allocation has one address for its life. Behind it are chunks, each backed with memory of
//    the card, swapped to the host, or unbacked: nobody has made it resident yet, or all its bytes
//    are zero.
// 2. Chunks move only in swap_out(), swap_in(), make_resident() and make_all_resident(). The caller
//    guarantees that no work of the program is in flight on the chunks that move, nor on what is
//    freed or unmapped, and that the program uses only what is resident.
// 3. Memory of the card is taken and given by credits, chunk by chunk (credits.h).
// 4. The engine waits for its own copies, never for the card.
// 5. If a driver call fails, each chunk is still resident or swapped, with its bytes. The failure
//    says what was reached; the same call can be made again and continues there.
// 6. A chunk keeps its host copy when it is resident again, as far as the limit of host memory
//    allows. If its hash is still the same when it has to go, it goes without a copy.
// 7. A chunk whose bytes are all zero when it has to go becomes unbacked, and is zero again when it
//    is resident. Large allocations are zero when they are first resident: what the program never
//    writes does not travel. This needs Settings::hash.
// 8. A handle is memory that the program maps at addresses of its own, and that moves as an
//    allocation does: it is mapped at all of them whenever it is resident, and at none otherwise.
//
// From any thread. One call runs at a time; only usage() does not wait for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/failure.h"
#include "base/sizes.h"
#include "swap/card_memory.h"
#include "swap/credits.h"
#include "swap/handles.h"
#include "swap/hasher.h"
#include "swap/host_store.h"
#include "swap/mover.h"
#include "swap/space.h"

namespace vramkit::swap {

inline constexpr std::uint64_t kEverything = std::numeric_limits<std::uint64_t>::max();

struct Settings {
    std::uint64_t limit = 0;          // bytes of all chunks; 0: none
    std::uint64_t address_bytes = 0;  // to reserve; 0: four times the card
    // Copies of 64 MiB reach the rate of the link, and cost 0.1 ms of driver calls each.
    std::uint64_t chunk_bytes = std::uint64_t{64} << 20;
    HostStore::Settings host;
    CUfunction hash = nullptr;  // vk_hash128; null: every chunk that goes is copied
};

// Bytes of chunks, by where they are.
struct Usage {
    std::uint64_t unbacked = 0, resident = 0, arriving = 0, swapped = 0;
    std::uint64_t pinned = 0;      // of the resident ones: these never leave
    std::uint64_t unreleased = 0;  // of the card, which the driver refused to take back; no chunk's
};

struct Counters {
    std::uint64_t copies_out = 0, copied_out_bytes = 0;  // bytes: as traffic() has them
    std::uint64_t copies_in = 0, copied_in_bytes = 0;
    std::uint64_t dropped = 0, dropped_bytes = 0;  // chunks that went since they equal their copy
    std::uint64_t zeros = 0, zero_bytes = 0;       // ... and since they are zero
    std::uint64_t zeroed = 0;                      // chunks, when they became resident
    std::uint64_t hashed = 0;                      // chunks
    std::uint64_t waits = 0;                       // on the host, for copies and hashes
    std::uint64_t allocated = 0;                   // bytes, as the program asked for them
    std::uint64_t card_bytes = 0;                  // that chunks use
    std::uint64_t host_bytes = 0, host_used = 0;   // pinned; with copies of chunks in it
};

// Bytes that were copied so far.
struct Traffic {
    std::uint64_t out = 0, in = 0;
};

class Engine {
  public:
    // The table and the context must outlive the engine. Null and the reason on failure.
    static std::unique_ptr<Engine> open(const DriverTable& call, CUcontext context, int device,
                                        const Settings& settings, Failure& why);
    // Frees everything. No work of the program may be using it.
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // An address, a multiple of 512; 0 and the reason on failure. Takes no memory of the card:
    // new chunks are unbacked.
    std::uint64_t allocate(std::uint64_t bytes, Failure& why);
    // Bytes of all chunks from now on, as Settings::limit; what is more already stays.
    void set_limit(std::uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }
    // `freed` gets the bytes of the card that became free: the caller gives their credits.
    bool free(std::uint64_t address, std::uint64_t& freed, Failure& why);
    // The allocation around an address.
    std::optional<Block> find(std::uint64_t address) const;
    // The chunks of the allocation or handle around an address do not leave the card any more.
    bool pin(std::uint64_t address, Failure& why);

    // Handles, as the driver's calls of similar names have them; a failure has the code for the
    // program. On the card at once what is there, or when the chunk is there again.
    //
    // The id of a new handle, which is its home address; 0 on failure. Whole pages of 2 MiB.
    std::uint64_t create(std::uint64_t bytes, Failure& why);
    // One reference of the program less, or more. The memory goes with the last reference and
    // mapping: `freed` as in free().
    bool release(std::uint64_t id, std::uint64_t& freed, Failure& why);
    bool retain(std::uint64_t id);
    // The whole handle, at an address that the program has reserved.
    bool map(std::uint64_t id, std::uint64_t address, std::uint64_t bytes, Failure& why);
    // Whole mappings; none in the range is no failure. After one, those before the failed one are
    // gone.
    bool unmap(std::uint64_t address, std::uint64_t bytes, std::uint64_t& freed, Failure& why);
    // Of whole mappings, at least one.
    bool set_access(std::uint64_t address, std::uint64_t bytes,
                    std::span<const CUmemAccessDesc> access, Failure& why);
    unsigned long long access(std::uint64_t address, const CUmemLocation& location) const;
    // The handle mapped there.
    std::optional<std::uint64_t> handle_at(std::uint64_t address) const;
    // Whether a handle is mapped at some of these bytes.
    bool owns_mapping(std::uint64_t address, std::uint64_t bytes = 1) const;

    // Backs or brings back all chunks of the range, which may be of allocations, homes or mappings,
    // and waits until they are there. What was never resident has no defined content, as after
    // cuMemAlloc. `missing` gets the bytes that credits did not suffice for.
    bool make_resident(std::uint64_t address, std::uint64_t bytes, Credits& credits,
                       std::uint64_t& missing, Failure& why);
    // Moves chunks to the host, in the order of their addresses, until so many bytes of the card
    // are free or none is left. Credits are given after each chunk. What is zero is unbacked then.
    bool swap_out(std::uint64_t bytes, Credits& credits, Failure& why);
    // Starts to bring swapped chunks back, as far as credits suffice, and returns without waiting
    // for the copies: call it again when there are more credits, then finish(). Unbacked chunks
    // stay so.
    bool swap_in(Credits& credits, std::uint64_t& missing, Failure& why);
    // The same for unbacked chunks too, behind the swapped ones.
    bool make_all_resident(Credits& credits, std::uint64_t& missing, Failure& why);
    // What make_all_resident() would bring; what is arriving is not counted. Takes no lock.
    std::uint64_t bytes_to_come() const;
    // Waits for the copies: what was arriving is resident. Before the program runs again, also
    // after a swap that failed.
    bool finish(Failure& why);

    // Pins host memory ahead of need, until so many bytes are free for copies.
    bool prepare_host(std::uint64_t bytes, Failure& why);
    // Gives unused host memory back. Waits for the work of the card.
    void trim_host();

    Usage usage() const;
    // Takes no lock.
    Traffic traffic() const {
        return {traffic_out_.load(std::memory_order_relaxed),
                traffic_in_.load(std::memory_order_relaxed)};
    }
    Counters counters() const;
    // What is wrong, for tests; empty: nothing.
    std::string broken_invariant() const;

  private:
    class Departure;

    Engine(const DriverTable& call, CUcontext context, int device, const Settings& settings);
    bool make(Failure& why);
    static Failure no_host_memory();
    // Adds how far a swap came to a failure's message.
    static void explain(Failure& why, const char* what, std::uint64_t done, std::uint64_t wanted);
    // An allocation or a handle. With the lock.
    std::uint64_t allocate_locked(std::uint64_t bytes, Failure& why);
    // Chunks that have bytes of a range, once each, by address. With the lock, as what follows.
    std::vector<Chunk*> chunks_in(std::uint64_t address, std::uint64_t bytes);
    // visit(Chunk&), perhaps twice for one.
    template <typename Visit>
    void each_chunk_in(std::uint64_t address, std::uint64_t bytes, Visit visit);
    template <typename Visit>
    void each_chunk_of(const Mapping& mapping, Visit visit);
    static Alias& alias_of(Chunk& chunk, const Mapping& mapping);
    std::string broken_handles() const;
    // All of these in the context too.
    void set_state(Chunk& chunk, State state);
    bool finish_arriving(Failure& why);
    // Waits for copies and hashes whose wait failed.
    bool settle(Failure& why);
    // Credits of what the driver refused to take back before.
    void give_released(Credits& credits);
    // Off the card. On failure it is there again, or ending.
    bool unmap_all(Mapping& mapping, Failure& why);
    void begin_to_end(Mapping& mapping);
    void forget(const Mapping& mapping);
    // Tries again what the driver refused to unmap.
    void end_mappings();
    // Frees a handle without references and mappings.
    void drop_if_unused(std::uint64_t id);
    void unpin(Chunk& chunk);
    bool bring_all(bool unbacked, Credits& credits, std::uint64_t& missing, Failure& why);
    void list_coming();
    enum class Brought : std::uint8_t { done, short_of_credits, failed };
    Brought bring(Chunk& chunk, Credits& credits, Failure& why);
    // Chunks that leave. Nobody can tell which of them a launch uses, and before the next one all
    // are back; by their addresses the same ones leave each time, and these have their copies.
    std::vector<Chunk*> choose(std::uint64_t bytes);
    // Takes its memory away: it is swapped, and its copy is done, or unbacked, and it is zero.
    // False: it is resident, or where a part was unmapped, in the new state with what is left.
    bool leave(Chunk& chunk, State to, Credits& credits, Failure& why);
    // Takes away the memory of chunks without blocks. `keep`: an empty shared chunk may stay, for
    // the next small allocation. Returns the bytes that became free.
    std::uint64_t clean(bool keep);
    // The same for memory that a failed call left with chunks that are not on the card.
    std::uint64_t clear_leftovers();
    bool discard(Chunk& chunk);

    const DriverTable& call_;
    const CUcontext context_;
    const int device_;
    const Settings settings_;
    std::atomic<std::uint64_t> limit_;
    mutable std::mutex lock_;
    CUdeviceptr addresses_ = 0;
    std::uint64_t address_bytes_ = 0;
    CardMemory card_;
    HostStore host_;
    std::unique_ptr<Mover> mover_;
    std::unique_ptr<Hasher> hasher_;  // null: none
    std::optional<Space> space_;
    Handles handles_;
    std::size_t ending_ = 0;  // mappings
    ZeroHashes zeros_;
    // Swapped chunks by their addresses, then the unbacked ones, kept between
    // calls of swap_in(): a handover makes one for each chunk. Those before `next_coming_` are on
    // the card.
    std::vector<Chunk*> coming_;
    std::size_t next_coming_ = 0;
    bool coming_is_known_ = false;
    std::array<std::atomic<std::uint64_t>, 4> bytes_{};  // by state
    std::atomic<std::uint64_t> pinned_{0};               // of resident ones
    Counters counters_;
    std::atomic<std::uint64_t> traffic_out_{0}, traffic_in_{0};
};

}  // namespace vramkit::swap
