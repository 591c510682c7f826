// Where the pages of managed memory are, as the model has it: on the host, on a card, or nowhere
// while nobody has touched them.
//
// Pages of equal state are one entry of an ordered map, so that 12 GiB cost as little as 12 KiB.
// Everything here happens at one simulated moment; what it moves is returned, and takes its time
// elsewhere (Machine::prepare). Bytes are not touched: they are in the memfd wherever a page is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "driver/cuda_abi.h"
#include "sim/profile/profile.h"

namespace vramkit::sim {

class Space;

// The places of pages; a card is its ordinal.
inline constexpr int kOnHost = VRAMKIT_DEVICE_CPU;
inline constexpr int kNowhere = VRAMKIT_DEVICE_INVALID;

// What the program says of pages, and what the driver answers about them.
struct Advice {
    bool read_mostly = false;
    int preferred = kNowhere;       // kNowhere: none
    std::uint32_t accessed_by = 0;  // bit 0: the host; bit n + 1: card n
    int prefetched_to = kNowhere;   // kNowhere: never

    bool operator==(const Advice&) const = default;
    static std::uint32_t bit(int place) { return std::uint32_t{1} << (place + 1); }
};

// A run of pages in one state.
struct Pages {
    std::uint64_t bytes = 0;
    std::uint64_t block = 0;  // address of the allocation that they are part of
    int place = kNowhere;
    bool copy_on_host = false;  // on a card, and the host has the same bytes: going away is free
    std::uint64_t used = 0;     // when they were last used; the smallest is evicted first
    Advice advice{};
};

// Bytes that have to move for one operation.
struct Moves {
    std::uint64_t in = 0;         // to the card
    std::uint64_t out = 0;        // to the host
    std::uint64_t populated = 0;  // made on the card without data
    std::uint64_t faults = 0;     // that brought `in`; 0 in bulk
    std::uint64_t read_far = 0;   // that stay on the host and are read over the link
    std::uint64_t written_far = 0;

    bool none() const { return in + out + populated + read_far + written_far == 0; }
};

class ManagedPages {
  public:
    // The unit of eviction: whole blocks of this, as far as a run has them.
    static constexpr std::uint64_t kEvictionBytes = std::uint64_t{2} << 20;
    static constexpr std::uint64_t kPageBytes = 4096;  // of the host

    explicit ManagedPages(Space& space) : space_(space) {}
    void configure(const ManagedRates& rates) { rates_ = rates; }

    bool empty() const { return pages_.empty(); }
    void add(std::uint64_t block, std::uint64_t bytes);
    void remove(std::uint64_t block);
    // Whether all of the range is managed memory of one allocation.
    bool contains(std::uint64_t address, std::uint64_t bytes) const;

    // A card reads or writes a range, in order of address: what is not there comes by faults, and
    // where the card is full the least recently used pages go, of the same range too. Memory that
    // is not managed is left alone.
    void use(int device, std::uint64_t address, std::uint64_t bytes, bool write, Moves& moves);
    // The same by the host: bytes that come from a card. A page is there, whatever its advice.
    std::uint64_t use_by_host(std::uint64_t address, std::uint64_t bytes, bool write);
    // Pages of a range go to a place, as far as there is room, or room can be made of pages of
    // other allocations.
    void prefetch(int place, std::uint64_t address, std::uint64_t bytes, Moves& moves);
    // Evicts until so many bytes of the card are free, or no page is left on it.
    void make_room(int device, std::uint64_t bytes);
    // Bytes that make_room() has moved to the host since the last call.
    std::uint64_t take_evicted();

    void advise(std::uint64_t address, std::uint64_t bytes,
                const std::function<void(Pages&)>& change);
    // visit(pages) for each run of the range.
    template <class Visit>
    void each(std::uint64_t address, std::uint64_t bytes, Visit visit) const {
        auto it = pages_.upper_bound(address);
        if (it != pages_.begin()) --it;
        for (; it != pages_.end() && it->first < address + bytes; ++it) {
            if (it->first + it->second.bytes > address) visit(it->second);
        }
    }
    // Bytes at a place, of all managed memory.
    std::uint64_t bytes_at(int place) const;
    std::size_t runs() const { return pages_.size(); }

  private:
    using Map = std::map<std::uint64_t, Pages>;

    Map::iterator around(std::uint64_t address);
    // A run that begins, and one that ends, at an address; the run from there on.
    Map::iterator split(std::uint64_t address);
    // Joins runs in and next to a range that are in one state.
    void join(std::uint64_t begin, std::uint64_t end);
    void place(Pages& pages, int place);
    bool stays_away(const Pages& pages, int device, bool write) const;
    // The least recently used run on a card, of no run of `spared` (0: of any). Bytes that are free
    // now because of it, 0: there is none.
    std::uint64_t evict(int device, std::uint64_t wanted, std::uint64_t spared, std::uint64_t& out);
    // How many of the wanted bytes fit on the card, after an eviction if nothing is free.
    std::uint64_t room(int device, std::uint64_t wanted, bool may_evict, std::uint64_t spared,
                       std::uint64_t& out);

    Space& space_;
    ManagedRates rates_;
    Map pages_;
    std::uint64_t uses_ = 0;
    std::uint64_t evicted_ = 0;
};

}  // namespace vramkit::sim
