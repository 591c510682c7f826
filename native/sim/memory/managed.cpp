// Residency of managed memory: runs of pages, least recently used first where a card is full.
#include "sim/memory/managed.h"

#include <algorithm>
#include <utility>

#include "sim/memory/space.h"

namespace vramkit::sim {
namespace {

std::uint64_t round_down(std::uint64_t value, std::uint64_t to) { return value / to * to; }
std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
    return round_down(value + to - 1, to);
}

bool same_state(const Pages& one, const Pages& other) {
    return one.block == other.block && one.place == other.place &&
           one.copy_on_host == other.copy_on_host && one.used == other.used &&
           one.advice == other.advice;
}

}  // namespace

void ManagedPages::add(std::uint64_t block, std::uint64_t bytes) {
    pages_.emplace(block, Pages{.bytes = round_up(bytes, kPageBytes), .block = block});
}

void ManagedPages::remove(std::uint64_t block) {
    for (auto it = pages_.find(block); it != pages_.end() && it->second.block == block;) {
        place(it->second, kNowhere);
        it = pages_.erase(it);
    }
}

ManagedPages::Map::iterator ManagedPages::around(std::uint64_t address) {
    auto it = pages_.upper_bound(address);
    if (it == pages_.begin()) return pages_.end();
    --it;
    return address - it->first < it->second.bytes ? it : pages_.end();
}

bool ManagedPages::contains(std::uint64_t address, std::uint64_t bytes) const {
    auto it = pages_.upper_bound(address);
    if (bytes == 0 || it == pages_.begin()) return false;
    --it;
    const std::uint64_t block = it->second.block;
    if (address - it->first >= it->second.bytes) return false;
    std::uint64_t end = it->first + it->second.bytes;
    while (end < address + bytes && ++it != pages_.end() && it->second.block == block) {
        end = it->first + it->second.bytes;
    }
    return address + bytes <= end;
}

ManagedPages::Map::iterator ManagedPages::split(std::uint64_t address) {
    const auto it = around(address);
    if (it == pages_.end() || it->first == address) return it;
    Pages rest = it->second;
    rest.bytes -= address - it->first;
    it->second.bytes = address - it->first;
    return pages_.emplace_hint(std::next(it), address, rest);
}

void ManagedPages::join(std::uint64_t begin, std::uint64_t end) {
    auto it = pages_.lower_bound(begin);
    if (it != pages_.begin()) --it;
    while (it != pages_.end() && it->first <= end) {
        const auto next = std::next(it);
        if (next != pages_.end() && it->first + it->second.bytes == next->first &&
            same_state(it->second, next->second)) {
            it->second.bytes += next->second.bytes;
            pages_.erase(next);
        } else {
            it = next;
        }
    }
}

// The memory of a card goes with its pages.
void ManagedPages::place(Pages& pages, int place) {
    if (pages.place >= 0) space_.count_pages(pages.place, -static_cast<std::int64_t>(pages.bytes));
    if (place >= 0) space_.count_pages(place, static_cast<std::int64_t>(pages.bytes));
    pages.place = place;
    pages.copy_on_host = false;
}

// Documented: data that is where it is preferred is not moved where the one who needs it can reach
// it there, nor is data that a card has mapped. Copies of what is mostly read come before both.
bool ManagedPages::stays_away(const Pages& pages, int device, bool write) const {
    const Advice& advice = pages.advice;
    if (pages.place >= 0 || (advice.read_mostly && !write)) return false;
    if (advice.preferred == kOnHost) return true;
    return pages.place == kOnHost && advice.preferred != device &&
           (advice.accessed_by & Advice::bit(device)) != 0;
}

std::uint64_t ManagedPages::evict(int device, std::uint64_t wanted, std::uint64_t spared,
                                  std::uint64_t& out) {
    auto oldest = pages_.end();
    for (auto it = pages_.begin(); it != pages_.end(); ++it) {
        if (it->second.place != device || it->second.block == spared) continue;
        if (oldest == pages_.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (oldest == pages_.end()) return 0;
    // A run was used in order of address: its first pages are the oldest.
    const std::uint64_t bytes = std::min(oldest->second.bytes, round_up(wanted, kEvictionBytes));
    split(oldest->first + bytes);
    if (!oldest->second.copy_on_host) out += bytes;
    place(oldest->second, kOnHost);
    return bytes;
}

std::uint64_t ManagedPages::room(int device, std::uint64_t wanted, bool may_evict,
                                 std::uint64_t spared, std::uint64_t& out) {
    const auto free = [&] { return round_down(space_.free_bytes(device), kPageBytes); };
    while (free() == 0) {
        if (!may_evict || evict(device, wanted, spared, out) == 0) return 0;
    }
    return std::min(free(), wanted);
}

void ManagedPages::use(int device, std::uint64_t address, std::uint64_t bytes, bool write,
                       Moves& moves) {
    if (bytes == 0 || around(address) == pages_.end()) return;
    const std::uint64_t first = round_down(address, kPageBytes);
    const std::uint64_t end = round_up(address + bytes, kPageBytes);
    ++uses_;
    for (std::uint64_t at = first; at < end;) {
        auto it = around(at);
        if (it == pages_.end()) break;  // beyond the allocation, which the access reports
        const std::uint64_t run_end = it->first + it->second.bytes;
        const std::uint64_t stop = std::min(end, run_end);
        std::uint64_t begin = at;
        std::uint64_t fits = stop - at;
        const bool here = it->second.place == device;
        bool far = !here && stays_away(it->second, device, write);
        if (!here && !far) {
            // Whole faults, as far as the pages around are in the same state.
            begin = std::max(it->first, round_down(at, rates_.fault_bytes));
            const std::uint64_t last = std::min(run_end, round_up(stop, rates_.fault_bytes));
            fits = room(device, last - begin, true, 0, moves.out);
            far = fits == 0;  // the card is full of memory that cannot go
            if (far) {
                begin = at;
                fits = stop - at;
            }
        }
        split(begin + fits);
        Pages& pages = split(begin)->second;
        if (far) {
            if (pages.place == kNowhere) place(pages, kOnHost);
            (write ? moves.written_far : moves.read_far) += fits;
        } else if (!here) {
            const bool copied = pages.place == kOnHost && pages.advice.read_mostly;
            if (pages.place == kNowhere) {
                moves.populated += fits;
            } else {
                moves.in += fits;
                moves.faults += (round_up(begin + fits, rates_.fault_bytes) -
                                 round_down(begin, rates_.fault_bytes)) /
                                rates_.fault_bytes;
            }
            place(pages, device);
            pages.copy_on_host = copied;
        }
        if (!far) pages.used = uses_;
        if (write) pages.copy_on_host = false;
        at = std::max(at, begin + fits);
    }
    join(first, end);
}

std::uint64_t ManagedPages::use_by_host(std::uint64_t address, std::uint64_t bytes, bool write) {
    if (bytes == 0 || around(address) == pages_.end()) return 0;
    const std::uint64_t granule = std::max(rates_.fault_bytes, kPageBytes);
    const std::uint64_t end = address + bytes;
    std::uint64_t moved = 0;
    for (std::uint64_t at = address; at < end;) {
        auto it = around(at);
        if (it == pages_.end()) break;
        const std::uint64_t run_end = it->first + it->second.bytes;
        const std::uint64_t begin = std::max(it->first, round_down(at, granule));
        const std::uint64_t last = std::min(run_end, round_up(std::min(end, run_end), granule));
        at = last;
        const bool on_card = it->second.place >= 0;
        if (it->second.place == kOnHost || (it->second.copy_on_host && !write)) continue;
        split(last);
        Pages& pages = split(begin)->second;
        if (on_card && !pages.copy_on_host) moved += pages.bytes;
        if (on_card && pages.advice.read_mostly && !write) {
            pages.copy_on_host = true;
        } else {
            place(pages, kOnHost);
        }
    }
    join(address, end);
    return moved;
}

void ManagedPages::prefetch(int where, std::uint64_t address, std::uint64_t bytes, Moves& moves) {
    const std::uint64_t first = round_down(address, kPageBytes);
    const std::uint64_t end = round_up(address + bytes, kPageBytes);
    ++uses_;
    for (std::uint64_t at = first; at < end;) {
        auto it = around(at);
        if (it == pages_.end()) break;  // freed since
        const std::uint64_t stop = std::min(end, it->first + it->second.bytes);
        std::uint64_t fits = stop - at;
        const int from = it->second.place;
        if (where >= 0 && from != where) {
            // Documented: pages of other allocations may have to go.
            fits = room(where, fits, rates_.prefetch_evicts != 0, it->second.block, moves.out);
            if (fits == 0) break;
        }
        split(at + fits);
        Pages& pages = split(at)->second;
        const bool read_mostly = pages.advice.read_mostly;
        if (where == kOnHost && from >= 0) {
            if (!pages.copy_on_host) moves.out += fits;
            if (read_mostly) {
                pages.copy_on_host = true;
            } else {
                place(pages, kOnHost);
            }
        } else if (from == kNowhere) {
            moves.populated += fits;
            place(pages, where);
        } else if (where != from) {
            moves.in += fits;
            place(pages, where);
            pages.copy_on_host = from == kOnHost && read_mostly;
        }
        if (where >= 0) pages.used = uses_;
        at += fits;
    }
    join(first, end);
}

void ManagedPages::make_room(int device, std::uint64_t bytes) {
    while (space_.free_bytes(device) < bytes) {
        if (evict(device, bytes - space_.free_bytes(device), 0, evicted_) == 0) return;
    }
}

std::uint64_t ManagedPages::take_evicted() { return std::exchange(evicted_, 0); }

void ManagedPages::advise(std::uint64_t address, std::uint64_t bytes,
                          const std::function<void(Pages&)>& change) {
    const std::uint64_t first = round_down(address, kPageBytes);
    const std::uint64_t end = round_up(address + bytes, kPageBytes);
    split(end);
    for (auto it = split(first); it != pages_.end() && it->first < end; ++it) change(it->second);
    join(first, end);
}

std::uint64_t ManagedPages::bytes_at(int place) const {
    std::uint64_t bytes = 0;
    for (const auto& [address, pages] : pages_) {
        if (pages.place == place) bytes += pages.bytes;
    }
    return bytes;
}

}  // namespace vramkit::sim
