// Free ranges of one stream, or idle ones: found by exact size or best fit, joined with their
// neighbours when no range has the exact size.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/fences.h"
#include "base/rules.h"
#include "pool/blocks/ranges.h"

namespace vramkit::pool {

// Guarded by the lock of its owner: that of the stream cache, or the pool's. All links are in the
// records of the ranges, so that only a cut or a join may need host memory.
class FreeRanges {
  public:
    explicit FreeRanges(Ranges& ranges) : ranges_(ranges) {}
    ~FreeRanges() { ranges_.keep(spare_, 0); }
    FreeRanges(const FreeRanges&) = delete;
    FreeRanges& operator=(const FreeRanges&) = delete;

    bool empty() const { return count_ == 0; }
    std::size_t count() const { return count_; }
    std::uint64_t bytes() const { return bytes_; }
    // The newest fence of any range here, or one that was here since the set was empty.
    Fences::Number newest() const { return newest_; }
    // No range here has an older one.
    Fences::Number oldest() const { return oldest_; }

    // The range may be used by others when the fence has passed.
    void put(Slab& range, Fences::Number fence) {
        link(range, fence);
        note_fresh(range);
    }
    // A range of exactly `bytes`, the newest first, without joining any. Null: there is none.
    Slab* take_exact(std::uint64_t bytes) {
        const std::size_t bin = bin_of(bytes);
        Slab* range = bins_[bin];
        if (bin >= kExact) {
            while (range != nullptr && range->bytes != bytes) range = range->next;
        }
        if (range != nullptr) take(*range);
        return range;
    }
    // A range of `bytes`, cut off the smallest that is large enough after neighbours were joined.
    // The rest stays here, behind the same fence.
    Slab* take_best(std::uint64_t bytes) {
        Slab* const range = best(bytes);
        return range == nullptr ? nullptr : take_front(*range, bytes);
    }
    // The same off a range at a low address: the lowest of some.
    Slab* take_low(std::uint64_t bytes) {
        join();
        Slab* lowest = nullptr;
        int looks = kLooks;
        each([&](Slab& range) {
            if (range.bytes < bytes) return bin_of(range.bytes) >= kExact;
            if (lowest == nullptr || range.address < lowest->address) lowest = &range;
            return --looks > 0;
        });
        return lowest == nullptr ? nullptr : take_front(*lowest, bytes);
    }
    // The range that take_best() would take from.
    Slab* best(std::uint64_t bytes) {
        join();
        return smallest(bytes, [](const Slab&) { return true; });
    }
    // The same for others, of those whose fences have passed. None are joined, since a joined range
    // has the newest fence of its parts.
    Slab* take_passed(std::uint64_t bytes, const Fences& fences) {
        if (empty() || !fences.has_passed(oldest_)) return nullptr;
        Slab* const range =
            smallest(bytes, [&](const Slab& one) { return fences.has_passed(one.fence); });
        return range == nullptr ? nullptr : take_front(*range, bytes);
    }
    // The first `bytes` of a range that is here; the rest stays.
    Slab* take_front(Slab& range, std::uint64_t bytes) {
        const bool whole = range.bytes == bytes;
        if (!whole) ranges_.reserve(spare_, 1);  // may fail: nothing has changed yet
        const bool fresh = range.fresh;
        unlink(range);
        if (!whole) {
            Slab& rest = ranges_.cut(range, bytes, spare_);
            link(rest, is_broken(Rule::split_block_keeps_fence) ? 0 : range.fence);
            if (fresh) note_fresh(rest);  // what is behind it may be free too
        }
        low_ = std::min(low_, bytes_);
        return &range;
    }
    void take(Slab& range) { take_front(range, range.bytes); }
    // Puts a range back that was taken from here, behind the fence that it has.
    void put_back(Slab& range) { put(range, range.fence); }
    // A part of a range is neither here nor mapped any more. Takes up to two spare records. Returns
    // what is left behind the part, or null.
    Slab* remove_part(Slab& range, const Extent& part, Ranges::Spare& spare) {
        const Fences::Number fence =
            is_broken(Rule::rest_of_moved_range_keeps_fence) ? 0 : range.fence;
        Slab* rest = &range;
        unlink(range);
        if (part.address > range.address) {
            rest = &ranges_.cut(range, part.address - range.address, spare);
            put(range, fence);
        }
        Slab* behind = nullptr;
        if (rest->bytes > part.bytes) {
            behind = &ranges_.cut(*rest, part.bytes, spare);
            put(*behind, fence);
        }
        ranges_.end(*rest);
        low_ = std::min(low_, bytes_);
        return behind;
    }
    // Every range touches no other one here afterwards.
    void join() {
        // May fail: nothing has changed yet. Each join leaves one record.
        if (spare_.capacity() - spare_.size() < count_) spare_.reserve(spare_.size() + 2 * count_);
        while (fresh_ != nullptr) {
            Slab& range = *fresh_;
            forget_fresh(range);
            join_neighbours(range);
        }
        ranges_.keep(spare_, kSpareRecords);
    }

    // visit(Slab&) in order of size: the largest first, or as they come. The visitor may take the
    // range that it gets, and returns whether to go on.
    template <class Visit>
    void each(Visit visit) const {
        for (std::size_t bin = kBins; bin-- > 0;) {
            for (Slab* range = bins_[bin]; range != nullptr;) {
                Slab* const next = range->next;
                if (!visit(*range)) return;
                range = next;
            }
        }
    }
    // Hands over ranges whose fences have passed.
    template <class Give>
    void collect(const Fences& fences, Give give) {
        if (empty() || !fences.has_passed(oldest_)) return;
        Fences::Number oldest = kNone;
        each([&](Slab& range) {
            if (fences.has_passed(range.fence)) {
                take(range);
                give(range);
            } else {
                oldest = std::min(oldest, range.fence);
            }
            return true;
        });
        oldest_ = oldest;
    }
    // Moves so many bytes to another set, the largest ranges first.
    void move_to(FreeRanges& other, std::uint64_t bytes) {
        each([&](Slab& range) {
            const std::uint64_t part = std::min<std::uint64_t>(range.bytes, bytes / kSpan * kSpan);
            if (part == 0) return false;
            bytes -= part;
            Slab* const moved = take_front(range, part);
            other.put(*moved, moved->fence);
            return true;
        });
    }
    static constexpr std::uint64_t kAll = ~std::uint64_t{0};
    // The fewest bytes here since the last call.
    std::uint64_t reset_low() { return std::exchange(low_, bytes_); }
    std::uint64_t low() const { return low_; }
    // Whether two ranges touch that the next join() would not find.
    bool has_missed_neighbours() const {
        bool missed = false;
        each([&](const Slab& range) {
            const Slab* const behind = ranges_.behind(range.extent().end(), this);
            missed |= behind != nullptr && !range.fresh && !behind->fresh;
            return true;
        });
        return missed;
    }

  private:
    // Ranges below 16 MiB have a bin for each size, larger ones sixteen to each doubling.
    static constexpr std::size_t kExact = 256;
    static constexpr std::size_t kSteps = 16;
    static constexpr std::size_t kDoublings = 17;  // 2^8 to 2^24 spans: 1 TiB
    static constexpr std::size_t kBins = kExact + kSteps * kDoublings;
    static constexpr std::size_t kSpareRecords = 64;
    static constexpr int kLooks = 64;  // at ranges of about the same size
    static constexpr Fences::Number kNone = ~Fences::Number{0};

    static std::size_t bin_of(std::uint64_t bytes) {
        const std::uint64_t spans = bytes / kSpan;
        if (spans < kExact) return spans;
        const unsigned doubling = static_cast<unsigned>(std::bit_width(spans)) - 9;
        const std::uint64_t step = (spans >> (doubling + 4)) - kSteps;  // 0 to 15
        return kExact + kSteps * doubling + step;
    }
    std::size_t next_filled(std::size_t from) const {
        for (std::size_t word = from / 64; word < filled_.size(); ++word, from = 0) {
            const std::uint64_t ahead = filled_[word] >> from % 64;
            if (ahead != 0) {
                return 64 * word + from % 64 + static_cast<std::size_t>(std::countr_zero(ahead));
            }
        }
        return kBins;
    }
    template <class Suits>
    Slab* smallest(std::uint64_t bytes, Suits suits) const {
        for (std::size_t bin = next_filled(bin_of(bytes)); bin < kBins;
             bin = next_filled(bin + 1)) {
            Slab* best = nullptr;
            int looks = kLooks;
            for (Slab* range = bins_[bin]; range != nullptr && looks > 0; range = range->next) {
                if (range->bytes < bytes) continue;
                --looks;
                if (!suits(*range)) continue;
                if (best == nullptr || range->bytes < best->bytes) best = range;
                if (bin < kExact) break;
            }
            if (best != nullptr) return best;
        }
        return nullptr;
    }
    void link(Slab& range, Fences::Number fence) {
        const std::size_t bin = bin_of(range.bytes);
        range.fence = fence;
        range.free_in = this;
        range.next = bins_[bin];
        range.before = nullptr;
        if (range.next != nullptr) range.next->before = &range;
        bins_[bin] = &range;
        filled_[bin / 64] |= std::uint64_t{1} << bin % 64;
        oldest_ = empty() ? fence : std::min(oldest_, fence);
        newest_ = empty() ? fence : std::max(newest_, fence);
        ++count_;
        bytes_ += range.bytes;
    }
    void unlink(Slab& range) {
        if (range.next != nullptr) range.next->before = range.before;
        if (range.before != nullptr) {
            range.before->next = range.next;
        } else {
            const std::size_t bin = bin_of(range.bytes);
            bins_[bin] = range.next;
            if (range.next == nullptr) filled_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
        }
        range.free_in = nullptr;
        forget_fresh(range);
        --count_;
        bytes_ -= range.bytes;
    }
    void note_fresh(Slab& range) {
        range.fresh_next = fresh_;
        range.fresh_before = nullptr;
        if (fresh_ != nullptr) fresh_->fresh_before = &range;
        fresh_ = &range;
        range.fresh = true;
    }
    void forget_fresh(Slab& range) {
        if (!range.fresh) return;
        range.fresh = false;
        if (range.fresh_next != nullptr) range.fresh_next->fresh_before = range.fresh_before;
        if (range.fresh_before != nullptr) {
            range.fresh_before->fresh_next = range.fresh_next;
        } else {
            fresh_ = range.fresh_next;
        }
    }
    // Neighbours may have neighbours that are as fresh as they are. Links the joined range once.
    void join_neighbours(Slab& part) {
        Slab* before = ranges_.before(part.address, this);
        Slab* behind = ranges_.behind(part.extent().end(), this);
        if (before == nullptr && behind == nullptr) return;
        Slab* range = &part;
        Fences::Number newest = part.fence;
        unlink(part);
        const auto take_out = [&](Slab& other) {
            newest = is_broken(Rule::joined_block_keeps_newest_fence)
                         ? 0
                         : std::max(newest, other.fence);
            unlink(other);
        };
        for (; before != nullptr; before = ranges_.before(range->address, this)) {
            take_out(*before);
            ranges_.join(*before, *range, spare_);
            range = before;
        }
        for (; behind != nullptr; behind = ranges_.behind(range->extent().end(), this)) {
            take_out(*behind);
            ranges_.join(*range, *behind, spare_);
        }
        link(*range, newest);
    }

    Ranges& ranges_;
    std::uint64_t bytes_ = 0;
    std::uint64_t low_ = 0;
    std::size_t count_ = 0;
    Fences::Number oldest_ = 0, newest_ = 0;
    Slab* fresh_ = nullptr;                                  // put here since the last join
    std::array<std::uint64_t, (kBins + 63) / 64> filled_{};  // bins with ranges
    std::array<Slab*, kBins> bins_{};
    Ranges::Spare spare_;
};

}  // namespace vramkit::pool
