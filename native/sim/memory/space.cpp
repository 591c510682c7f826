// Addresses by first fit, bytes in a memfd, mappings in ordered maps.
#include "sim/memory/space.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "sim/card/card.h"

namespace vramkit::sim {
namespace {

// Blocks up to this share a slab of one granule; of small granules, those up to half of one.
constexpr std::uint64_t kSmall = std::uint64_t{1} << 20;
constexpr std::uint64_t kFewestAddresses = std::uint64_t{64} << 30;
constexpr std::uint64_t kBlockAlignment = 512;  // as the driver aligns cuMemAlloc

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

void* reserve_nothing(std::uint64_t bytes) {
    return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// The entry of an ordered map of intervals that contains an address, or end.
template <class Map, class Size>
auto containing(Map& map, std::uint64_t address, Size size) {
    auto after = map.upper_bound(address);
    if (after == map.begin()) return map.end();
    auto it = std::prev(after);
    return address - it->first < size(it->second) ? it : map.end();
}

constexpr auto kBytes = [](const auto& entry) { return entry.bytes; };

}  // namespace

std::unique_ptr<Space> Space::make(bool data, int devices, std::uint64_t capacity,
                                   std::uint64_t granularity, std::string& error) {
    std::unique_ptr<Space> space(new Space());
    for (std::uint64_t bytes = kMostAddresses; bytes >= kFewestAddresses; bytes /= 2) {
        void* addresses = reserve_nothing(bytes);
        void* aliases = data ? reserve_nothing(bytes) : nullptr;
        if (addresses != MAP_FAILED && aliases != MAP_FAILED) {
            space->base_ = reinterpret_cast<std::uint64_t>(addresses);
            space->alias_base_ = reinterpret_cast<std::uint64_t>(aliases);
            space->address_bytes_ = bytes;
            break;
        }
        if (addresses != MAP_FAILED) munmap(addresses, bytes);
        if (data && aliases != MAP_FAILED) munmap(aliases, bytes);
    }
    if (space->address_bytes_ == 0) {
        error = std::string("cannot reserve device addresses: ") + std::strerror(errno);
        return nullptr;
    }
    if (data) space->file_ = memfd_create("vramkit-sim", MFD_CLOEXEC);
    if (data && space->file_ < 0) {
        error = std::string("cannot make memory for the simulated card: ") + std::strerror(errno);
        return nullptr;
    }
    space->data_ = data;
    space->capacity_ = capacity;
    space->granularity_ = granularity;
    space->used_.assign(devices, 0);
    // The first page of addresses stays unused, and all begin at a multiple of the granularity.
    const std::uint64_t begin = round_up(space->base_ + 1, granularity);
    space->free_addresses_.insert(begin, space->base_ + space->address_bytes_ - begin);
    return space;
}

Space::~Space() {
    for (const auto& [address, block] : host_) {
        // Given back, but not unmapped: a view that the program still holds reads zeros, and does
        // not bring it down.
        if (!block.registered) {
            madvise(reinterpret_cast<void*>(address), block.bytes, MADV_DONTNEED);
        }
    }
    if (base_ != 0) munmap(reinterpret_cast<void*>(base_), address_bytes_);
    if (alias_base_ != 0) munmap(reinterpret_cast<void*>(alias_base_), address_bytes_);
    if (file_ >= 0) close(file_);
}

std::uint64_t Space::take_addresses(std::uint64_t bytes, std::uint64_t alignment,
                                    std::uint64_t wish) {
    const bool can = wish != 0 && wish % alignment == 0;
    if (can && free_addresses_.take_at(wish, bytes)) return wish;
    return free_addresses_.take_lowest(bytes, alignment);
}

void Space::give_addresses(std::uint64_t address, std::uint64_t bytes) {
    free_addresses_.insert(address, bytes);
}

std::uint64_t Space::free_bytes(int device) const {
    return card_ != nullptr ? card_->free_bytes() : capacity_ - used_[device];
}

bool Space::take_capacity(int device, std::uint64_t bytes) {
    if (card_ != nullptr ? !card_->take_memory(bytes) : bytes > capacity_ - used_[device]) {
        return false;
    }
    used_[device] += bytes;
    return true;
}

void Space::give_capacity_back(int device, std::uint64_t bytes) {
    used_[device] -= bytes;
    if (card_ != nullptr) card_->give_memory_back(bytes);
}

void Space::count_pages(int device, std::int64_t bytes) {
    used_[device] += static_cast<std::uint64_t>(bytes);
    if (card_ != nullptr) card_->count_memory(bytes);
}

std::shared_ptr<Physical> Space::create(int device, std::uint64_t bytes,
                                        const CUmemAllocationProp& properties) {
    if (bytes > free_bytes(device)) managed_.make_room(device, bytes);
    if (!take_capacity(device, bytes)) return nullptr;
    auto physical = std::make_shared<Physical>();
    physical->offset = next_offset_;
    physical->bytes = bytes;
    physical->device = device;
    physical->handles = 1;
    physical->properties = properties;
    if (data_ && ftruncate(file_, static_cast<off_t>(next_offset_ + bytes)) != 0) {
        give_capacity_back(device, bytes);
        return nullptr;
    }
    next_offset_ += bytes;
    return physical;
}

bool Space::release_if_unused(const std::shared_ptr<Physical>& physical) {
    if (physical->handles > 0 || physical->mappings > 0) return false;
    if (physical->device != kNowhere) give_capacity_back(physical->device, physical->bytes);
    if (data_) {
        fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(physical->offset), static_cast<off_t>(physical->bytes));
    }
    return true;
}

bool Space::place(std::uint64_t address, const std::shared_ptr<Physical>& physical,
                  bool accessible) {
    if (data_) {
        void* at = alias(address);
        if (mmap(at, physical->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                 static_cast<off_t>(physical->offset)) == MAP_FAILED) {
            return false;
        }
    }
    mappings_.emplace(address, Mapping{physical->bytes, physical, accessible, accessible});
    ++physical->mappings;
    return true;
}

void Space::displace(std::uint64_t address) {
    auto it = mappings_.find(address);
    if (data_) {
        mmap(alias(address), it->second.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (it->second.physical->device == kNowhere) {
            mmap(reinterpret_cast<void*>(address), it->second.bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        }
    }
    --it->second.physical->mappings;
    mappings_.erase(it);
}

std::uint64_t Space::back(int device, std::uint64_t bytes) {
    auto physical = create(device, bytes, {});
    if (physical == nullptr) return 0;
    physical->handles = 0;
    const std::uint64_t address = take_addresses(bytes, granularity_, 0);
    if (address == 0 || !place(address, physical, true)) {
        if (address != 0) give_addresses(address, bytes);
        release_if_unused(physical);
        return 0;
    }
    return address;
}

std::uint64_t Space::unback(std::uint64_t address) {
    const Mapping mapping = mappings_.find(address)->second;
    displace(address);
    give_addresses(address, mapping.bytes);
    release_if_unused(mapping.physical);
    return mapping.bytes;
}

std::uint64_t Space::allocate(int device, std::uint64_t bytes, Context* context, const Site& site,
                              std::uint64_t& made) {
    const bool small = bytes <= std::min(kSmall, granularity_ / 2);
    const std::uint64_t footprint = round_up(bytes, small ? kBlockAlignment : granularity_);
    std::uint64_t address = 0, mapping = 0;
    made = bytes;
    if (small) {
        for (auto& [begin, slab] : slabs_) {
            if (slab.device != device) continue;
            address = slab.holes.take_lowest(footprint, kBlockAlignment);
            if (address != 0) {
                slab.live += 1;
                mapping = begin;
                break;
            }
        }
    }
    if (address == 0) {
        const std::uint64_t size = small ? granularity_ : footprint;
        made = size;
        address = mapping = back(device, size);
        if (mapping == 0) return 0;
        if (small) {
            SmallSlab& slab = slabs_[mapping];
            slab.device = device;
            slab.live = 1;
            slab.holes.insert(mapping + footprint, size - footprint);
        }
    }
    allocations_.emplace(address, Allocation{bytes, footprint, mapping, context, next_id_++, site});
    return address;
}

std::uint64_t Space::allocate_managed(std::uint64_t bytes, Context* context, const Site& site) {
    const std::uint64_t footprint = round_up(bytes, granularity_);
    auto physical = std::make_shared<Physical>();
    physical->offset = next_offset_;
    physical->bytes = footprint;
    physical->device = kNowhere;
    const auto end = static_cast<off_t>(next_offset_ + footprint);
    if (data_ && ftruncate(file_, end) != 0) return 0;
    next_offset_ += footprint;
    const std::uint64_t address = take_addresses(footprint, granularity_, 0);
    if (address == 0) return 0;
    if (!place(address, physical, true)) {
        give_addresses(address, footprint);
        return 0;
    }
    void* const at = reinterpret_cast<void*>(address);
    if (data_ && mmap(at, footprint, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                      static_cast<off_t>(physical->offset)) == MAP_FAILED) {
        unback(address);
        return 0;
    }
    allocations_.emplace(address, Allocation{.bytes = bytes,
                                             .footprint = footprint,
                                             .mapping = address,
                                             .context = context,
                                             .id = next_id_++,
                                             .site = site,
                                             .managed = true});
    managed_.add(address, bytes);
    return address;
}

const Allocation* Space::allocation_at(std::uint64_t address) const {
    auto it = allocations_.find(address);
    return it == allocations_.end() ? nullptr : &it->second;
}

std::pair<std::uint64_t, const Allocation*> Space::allocation_around(std::uint64_t address) const {
    auto it = containing(allocations_, address, kBytes);
    if (it == allocations_.end()) return {0, nullptr};
    return {it->first, &it->second};
}

std::uint64_t Space::free(std::uint64_t address) {
    auto it = allocations_.find(address);
    const Allocation block = it->second;
    allocations_.erase(it);
    if (block.managed) managed_.remove(address);
    auto slab = slabs_.find(block.mapping);
    if (slab != slabs_.end()) {
        slab->second.holes.insert(address, block.footprint);
        if (--slab->second.live > 0) return block.bytes;
        slabs_.erase(slab);
    }
    return unback(block.mapping);
}

std::uint64_t Space::reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wish) {
    const std::uint64_t address = take_addresses(bytes, std::max(alignment, granularity_), wish);
    if (address != 0) reservations_.emplace(address, bytes);
    return address;
}

bool Space::is_reservation(std::uint64_t address, std::uint64_t bytes) const {
    auto it = reservations_.find(address);
    return it != reservations_.end() && it->second == bytes;
}

bool Space::inside_reservation(std::uint64_t address, std::uint64_t bytes) const {
    // Neighbouring reservations do not join: a range must lie in one.
    const auto [begin, size] = reservation_around(address);
    return size > 0 && bytes <= size - (address - begin);
}

std::pair<std::uint64_t, std::uint64_t> Space::reservation_around(std::uint64_t address) const {
    auto it = containing(reservations_, address, [](std::uint64_t size) { return size; });
    if (it == reservations_.end()) return {};
    return *it;
}

void Space::unreserve(std::uint64_t address) {
    auto it = reservations_.find(address);
    give_addresses(address, it->second);
    reservations_.erase(it);
}

bool Space::map(std::uint64_t address, const std::shared_ptr<Physical>& physical) {
    if (!place(address, physical, false)) return false;
    ++vmm_mappings_;
    return true;
}

void Space::unmap(std::uint64_t address) {
    displace(address);
    --vmm_mappings_;
}

std::vector<std::uint64_t> Space::mappings_in(std::uint64_t address, std::uint64_t bytes) const {
    std::vector<std::uint64_t> found;
    for (auto it = mappings_.lower_bound(address);
         it != mappings_.end() && it->first < address + bytes; ++it) {
        found.push_back(it->first);
    }
    return found;
}

bool Space::cuts_mapping(std::uint64_t address, std::uint64_t bytes) const {
    const auto cut = [&](std::uint64_t at) {
        auto it = containing(mappings_, at, kBytes);
        return it != mappings_.end() && it->first != at;
    };
    return cut(address) || cut(address + bytes);
}

std::pair<std::uint64_t, Mapping*> Space::mapping_around(std::uint64_t address) {
    auto it = containing(mappings_, address, kBytes);
    if (it == mappings_.end()) return {0, nullptr};
    return {it->first, &it->second};
}

void* Space::allocate_host(std::uint64_t bytes, unsigned flags, Context* context,
                           const Site& site) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    host_.emplace(reinterpret_cast<std::uint64_t>(memory),
                  HostBlock{bytes, flags, false, context, next_id_++, site});
    return memory;
}

void Space::add_registered(std::uint64_t address, std::uint64_t bytes, unsigned flags,
                           Context* context, const Site& site) {
    host_.emplace(address, HostBlock{bytes, flags, true, context, next_id_++, site});
}

bool Space::overlaps_host(std::uint64_t address, std::uint64_t bytes) const {
    auto after = host_.lower_bound(address);
    if (after != host_.end() && after->first < address + bytes) return true;
    return containing(host_, address, kBytes) != host_.end();
}

std::pair<std::uint64_t, const HostBlock*> Space::host_around(std::uint64_t address) const {
    auto it = containing(host_, address, kBytes);
    if (it == host_.end()) return {0, nullptr};
    return {it->first, &it->second};
}

void Space::remove_host(std::uint64_t address) {
    auto it = host_.find(address);
    if (!it->second.registered) munmap(reinterpret_cast<void*>(address), it->second.bytes);
    host_.erase(it);
}

bool Space::resolve(std::uint64_t address, std::uint64_t bytes, std::vector<Piece>& pieces) const {
    if (bytes == 0) return true;
    if (!is_device_address(address)) {
        const auto [begin, block] = host_around(address);
        if (block == nullptr || bytes > block->bytes - (address - begin)) return false;
        pieces.push_back(Piece{.address = address,
                               .bytes = bytes,
                               .physical = address,
                               .data = reinterpret_cast<std::byte*>(address),
                               .host = true});
        return true;
    }
    const auto [begin, block] = allocation_around(address);
    if (block != nullptr && bytes > block->bytes - (address - begin)) return false;
    while (bytes > 0) {
        auto it = containing(mappings_, address, kBytes);
        if (it == mappings_.end()) return false;
        // A hole of a slab is mapped, but nobody's.
        if (block == nullptr && slabs_.contains(it->first)) return false;
        const std::uint64_t inside = address - it->first;
        const std::uint64_t length = std::min(bytes, it->second.bytes - inside);
        pieces.push_back(Piece{.address = address,
                               .bytes = length,
                               .physical = (it->second.physical->offset + inside) | physical_tag,
                               .data = alias(address),
                               .readable = it->second.readable,
                               .writable = it->second.writable});
        address += length;
        bytes -= length;
    }
    return true;
}

std::byte* Space::alias(std::uint64_t address) const {
    if (!data_) return nullptr;
    return reinterpret_cast<std::byte*>(alias_base_ + (address - base_));
}

std::optional<std::uint64_t> Space::address_of_alias(const void* pointer) const {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    if (!data_ || address - alias_base_ >= address_bytes_) return std::nullopt;
    return base_ + (address - alias_base_);
}

std::size_t Space::host_blocks(bool registered) const {
    return std::count_if(host_.begin(), host_.end(),
                         [&](const auto& entry) { return entry.second.registered == registered; });
}

std::vector<std::uint64_t> Space::device_blocks_of(const Context* context) const {
    std::vector<std::uint64_t> found;
    for (const auto& [address, block] : allocations_) {
        if (block.context == context) found.push_back(address);
    }
    return found;
}

std::vector<std::uint64_t> Space::host_blocks_of(const Context* context) const {
    std::vector<std::uint64_t> found;
    for (const auto& [address, block] : host_) {
        if (block.context == context) found.push_back(address);
    }
    return found;
}

}  // namespace vramkit::sim
