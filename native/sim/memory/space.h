// Memory of the simulated cards: addresses, physical memory, mappings, and the host memory they
// know.
//
// Device addresses are reserved and never accessible, so a stray host dereference faults. The bytes
// live in one memfd and are seen through an alias at a fixed distance from the device address.
// Physical offsets are never used twice (freed ones are punched out of the file), so that an offset
// names a piece of memory for ever. With data off there are no bytes, only sizes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/range_set.h"
#include "driver/cuda_abi.h"
#include "sim/checker/call_sites.h"
#include "sim/memory/managed.h"

namespace vramkit::sim {

struct Context;
class Card;

// One piece of physical memory: behind a cuMemAlloc block, a slab of small ones, or a VMM handle.
struct Physical {
    std::uint64_t offset = 0;  // in the memfd, and the checker's address (tagged, see physical_tag)
    std::uint64_t bytes = 0;
    int device = 0;   // kNowhere: of managed memory, whose pages are counted where they are
    int handles = 0;  // references by the program; 0 and unmapped: released
    int mappings = 0;
    CUmemAllocationProp properties{};
};

// Physical memory seen at a device address.
struct Mapping {
    std::uint64_t bytes = 0;
    std::shared_ptr<Physical> physical;
    bool readable = false;
    bool writable = false;
};

// A block of cuMemAlloc or cuMemAllocManaged.
struct Allocation {
    std::uint64_t bytes = 0;      // asked for
    std::uint64_t footprint = 0;  // taken
    std::uint64_t mapping = 0;    // address of the mapping it lies in
    Context* context = nullptr;
    std::uint64_t id = 0;  // of the buffer, unique
    Site site;             // of the call that made it
    bool freed = false;    // by cuMemFreeAsync, which its stream has not reached
    bool managed = false;
};

// Page-locked host memory.
struct HostBlock {
    std::uint64_t bytes = 0;
    unsigned flags = 0;
    bool registered = false;  // by cuMemHostRegister; else allocated by us
    Context* context = nullptr;
    std::uint64_t id = 0;
    Site site;
};

// Where a stretch of an address range really lies.
struct Piece {
    std::uint64_t address = 0;  // as the program says it
    std::uint64_t bytes = 0;
    std::uint64_t physical = 0;  // checker's address: tagged offset, or the host address
    std::byte* data = nullptr;   // readable bytes, null with data off
    bool host = false;
    bool readable = true;
    bool writable = true;
};

class Space {
  public:
    // Asked of the system for device addresses; half of that, and so on, where it has fewer.
    static constexpr std::uint64_t kMostAddresses = std::uint64_t{4} << 40;
    static constexpr std::uint64_t physical_tag = std::uint64_t{1} << 63;

    // Null and the system's reason where the addresses cannot be had.
    static std::unique_ptr<Space> make(bool data, int devices, std::uint64_t capacity,
                                       std::uint64_t granularity, std::string& error);
    ~Space();

    // The memory is also that of other processes. Before the first allocation.
    void share(Card& card) { card_ = &card; }

    std::uint64_t capacity() const { return capacity_; }
    std::uint64_t granularity() const { return granularity_; }
    std::uint64_t free_bytes(int device) const;
    bool is_device_address(std::uint64_t address) const { return address - base_ < address_bytes_; }

    // cuMemAlloc and cuMemFree. 0: out of memory. Both say how much memory was made or went away:
    // a whole page where a small block was the first or the last in it.
    std::uint64_t allocate(int device, std::uint64_t bytes, Context* context, const Site& site,
                           std::uint64_t& made);
    // cuMemAllocManaged: takes addresses, which the host may access too, and no memory of a card.
    std::uint64_t allocate_managed(std::uint64_t bytes, Context* context, const Site& site);
    ManagedPages& managed() { return managed_; }
    const ManagedPages& managed() const { return managed_; }
    // Pages of managed memory that came to a card or left it. There was room: where another process
    // took it at the same moment, the card has more than its capacity until pages leave.
    void count_pages(int device, std::int64_t bytes);
    // The allocation that begins at, or contains, an address.
    const Allocation* allocation_at(std::uint64_t address) const;
    std::pair<std::uint64_t, const Allocation*> allocation_around(std::uint64_t address) const;
    std::uint64_t free(std::uint64_t address);
    void mark_freed(std::uint64_t address) { allocations_.at(address).freed = true; }

    // Memory for a pool, at an address of its own; 0: out of memory. And its end.
    std::uint64_t back(int device, std::uint64_t bytes);
    std::uint64_t unback(std::uint64_t address);

    // Virtual memory management; the caller has checked sizes and alignment.
    std::uint64_t reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wish);
    bool is_reservation(std::uint64_t address, std::uint64_t bytes) const;
    // Begin and size of the reservation that an address lies in; zeros for none.
    std::pair<std::uint64_t, std::uint64_t> reservation_around(std::uint64_t address) const;
    bool inside_reservation(std::uint64_t address, std::uint64_t bytes) const;
    void unreserve(std::uint64_t address);
    std::shared_ptr<Physical> create(int device, std::uint64_t bytes,
                                     const CUmemAllocationProp& properties);
    bool map(std::uint64_t address, const std::shared_ptr<Physical>& physical);
    void unmap(std::uint64_t address);
    // Mappings that begin in [address, address + bytes), and whether they lie inside it whole.
    std::vector<std::uint64_t> mappings_in(std::uint64_t address, std::uint64_t bytes) const;
    bool cuts_mapping(std::uint64_t address, std::uint64_t bytes) const;
    std::pair<std::uint64_t, Mapping*> mapping_around(std::uint64_t address);
    // A reference of the program is gone; true where the memory went with it.
    bool release_if_unused(const std::shared_ptr<Physical>& physical);

    // Host memory.
    void* allocate_host(std::uint64_t bytes, unsigned flags, Context* context, const Site& site);
    void add_registered(std::uint64_t address, std::uint64_t bytes, unsigned flags,
                        Context* context, const Site& site);
    bool overlaps_host(std::uint64_t address, std::uint64_t bytes) const;
    std::pair<std::uint64_t, const HostBlock*> host_around(std::uint64_t address) const;
    void remove_host(std::uint64_t address);

    // The pieces of [address, address + bytes); nothing where some byte of it is not mapped.
    bool resolve(std::uint64_t address, std::uint64_t bytes, std::vector<Piece>& pieces) const;
    std::byte* alias(std::uint64_t address) const;
    // The device address whose alias this is, or nothing.
    std::optional<std::uint64_t> address_of_alias(const void* pointer) const;

    // visit(site, bytes) for each block of device and host memory that is open.
    template <class Visit>
    void each_open(Visit visit) const {
        for (const auto& [address, block] : allocations_) visit(block.site, block.bytes);
        for (const auto& [address, block] : host_) visit(block.site, block.bytes);
    }

    // For the accounting at the end of a test.
    std::size_t allocations() const { return allocations_.size(); }
    std::size_t host_blocks(bool registered) const;
    std::size_t reservations() const { return reservations_.size(); }
    std::size_t vmm_mappings() const { return vmm_mappings_; }
    // Takes away what a destroyed context had allocated; addresses of device and host blocks.
    std::vector<std::uint64_t> device_blocks_of(const Context* context) const;
    std::vector<std::uint64_t> host_blocks_of(const Context* context) const;

  private:
    Space() = default;
    std::uint64_t take_addresses(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wish);
    void give_addresses(std::uint64_t address, std::uint64_t bytes);
    bool place(std::uint64_t address, const std::shared_ptr<Physical>& physical, bool accessible);
    void displace(std::uint64_t address);
    // Capacity for physical memory; false: there is not as much.
    bool take_capacity(int device, std::uint64_t bytes);
    void give_capacity_back(int device, std::uint64_t bytes);

    bool data_ = true;
    int file_ = -1;
    std::uint64_t address_bytes_ = 0;
    std::uint64_t base_ = 0;        // of the device addresses
    std::uint64_t alias_base_ = 0;  // of their aliases
    std::uint64_t capacity_ = 0;
    std::uint64_t granularity_ = 0;
    std::vector<std::uint64_t> used_;  // bytes by device
    Card* card_ = nullptr;
    std::uint64_t next_offset_ = 0;  // of physical memory
    std::uint64_t next_id_ = 1;
    RangeSet free_addresses_;
    std::map<std::uint64_t, std::uint64_t> reservations_;  // begin -> bytes
    std::map<std::uint64_t, Mapping> mappings_;
    std::map<std::uint64_t, Allocation> allocations_;
    std::map<std::uint64_t, HostBlock> host_;
    struct SmallSlab {
        int device = 0;
        RangeSet holes;
        std::uint64_t live = 0;
    };
    std::map<std::uint64_t, SmallSlab> slabs_;  // by address of their mapping
    std::size_t vmm_mappings_ = 0;
    ManagedPages managed_{*this};
};

}  // namespace vramkit::sim
