// Free ranges of addresses: neighbours are joined; ranges are found by best fit, lowest address, or
// exactly. Everything except take_lowest takes time logarithmic in the number of ranges.
//
// Invariant: no two ranges touch, and both orders hold the same ranges.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace vramkit {

class RangeSet {
  public:
    bool empty() const { return ranges_.empty(); }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
    const std::map<std::uint64_t, std::uint64_t>& ranges() const {
        return ranges_;
    }  // begin, bytes

    // None of these bytes may be in the set.
    void insert(std::uint64_t begin, std::uint64_t bytes) {
        if (bytes == 0) return;
        bytes_ += bytes;
        auto next = ranges_.lower_bound(begin);
        if (next != ranges_.end() && begin + bytes == next->first) {
            bytes += next->second;
            next = erase(next);
        }
        if (next != ranges_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == begin) {
                begin = before->first;
                bytes += before->second;
                erase(before);
            }
        }
        put(begin, bytes);
    }
    void insert_all(RangeSet& other) {
        for (const auto& [begin, bytes] : other.ranges_) insert(begin, bytes);
        other = RangeSet();
    }

    // The first bytes of the smallest range that is large enough, the lowest of several; 0: there
    // is none.
    std::uint64_t take_best(std::uint64_t bytes) {
        const auto fit = by_size_.lower_bound({bytes, 0});
        if (fit == by_size_.end()) return 0;
        const std::uint64_t begin = fit->second;
        take_at(begin, bytes);
        return begin;
    }
    // The lowest aligned bytes. Walks the ranges by address.
    std::uint64_t take_lowest(std::uint64_t bytes, std::uint64_t alignment) {
        for (const auto& [begin, size] : ranges_) {
            const std::uint64_t aligned = (begin + alignment - 1) / alignment * alignment;
            if (aligned - begin > size || size - (aligned - begin) < bytes) continue;
            take_at(aligned, bytes);
            return aligned;
        }
        return 0;
    }
    // Exactly these bytes. False: some of them are not in the set, and nothing has changed.
    bool take_at(std::uint64_t begin, std::uint64_t bytes) {
        auto range = ranges_.upper_bound(begin);
        if (range == ranges_.begin()) return false;
        --range;
        const auto [start, size] = *range;
        const std::uint64_t before = begin - start;
        if (before > size || size - before < bytes) return false;
        erase(range);
        bytes_ -= bytes;
        if (before > 0) put(start, before);
        if (before + bytes < size) put(begin + bytes, size - before - bytes);
        return true;
    }

  private:
    using Ranges = std::map<std::uint64_t, std::uint64_t>;

    Ranges::iterator erase(Ranges::iterator range) {
        by_size_.erase({range->second, range->first});
        return ranges_.erase(range);
    }
    void put(std::uint64_t begin, std::uint64_t bytes) {
        ranges_.emplace(begin, bytes);
        by_size_.emplace(bytes, begin);
    }

    Ranges ranges_;
    std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // bytes, begin
    std::uint64_t bytes_ = 0;
};

}  // namespace vramkit
