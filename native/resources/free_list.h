// Free ranges of addresses: neighbours are joined, the smallest that is large enough is found.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace vramkit::resources {

class FreeList {
  public:
    bool empty() const { return sizes_.empty(); }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
    const std::map<std::uint64_t, std::uint64_t>& ranges() const { return sizes_; }

    void insert(std::uint64_t address, std::uint64_t size) {
        bytes_ += size;
        auto next = sizes_.lower_bound(address);
        if (next != sizes_.end() && address + size == next->first) {
            size += next->second;
            next = erase(next);
        }
        if (next != sizes_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == address) {
                address = before->first;
                size += before->second;
                erase(before);
            }
        }
        sizes_.emplace(address, size);
        by_size_.emplace(size, address);
    }

    // The first bytes of the range that fits best; 0 where none does.
    std::uint64_t take(std::uint64_t size) {
        const auto fit = by_size_.lower_bound({size, 0});
        if (fit == by_size_.end()) return 0;
        const std::uint64_t address = fit->second;
        remove(address, size);
        return address;
    }

    // Bytes that lie wholly in one free range.
    void remove(std::uint64_t address, std::uint64_t size) {
        const auto range = std::prev(sizes_.upper_bound(address));
        const auto [start, length] = *range;
        erase(range);
        bytes_ -= size;
        put(start, address - start);
        put(address + size, start + length - address - size);
    }

    void insert_all(FreeList& other) {
        for (const auto& [address, size] : other.sizes_) insert(address, size);
        other = FreeList();
    }

  private:
    using Ranges = std::map<std::uint64_t, std::uint64_t>;

    Ranges::iterator erase(Ranges::iterator range) {
        by_size_.erase({range->second, range->first});
        return sizes_.erase(range);
    }
    void put(std::uint64_t address, std::uint64_t size) {
        if (size == 0) return;
        sizes_.emplace(address, size);
        by_size_.emplace(size, address);
    }

    Ranges sizes_;  // by address
    std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit::resources
