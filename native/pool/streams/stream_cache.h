// The stream cache: free blocks of a stream that its thread caches do not keep, small ones by class
// and large ones as free ranges. The same stream can reuse them at once, another stream behind a
// fence.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/brief_mutex.h"
#include "base/fences.h"
#include "base/rules.h"
#include "pool/blocks/class_set.h"
#include "pool/blocks/free_ranges.h"
#include "pool/types.h"

namespace vramkit::pool {

// Has its own lock, which is taken after the pool's and before biased locks. With it held, driver
// calls only record fences, query them, make other streams wait for them and inform the checker.
class StreamCache {
  public:
    struct Entry {
        BlockRef block;
        Fences::Number fence = 0;  // when it has passed, any stream can take the block
    };
    struct Bin {
        std::vector<Entry> blocks;  // in the order of their fences
        std::size_t low = 0;        // fewest since the last decay: the stream did not need these
        std::size_t unneeded = 0;   // came from thread caches that did not need them
        std::size_t leaving = 0;    // so many of the oldest become idle when their work is done
    };

    StreamCache(EventPool& events, Ranges& all, std::uint32_t number_, StreamRef stream_)
        : fences(events), number(number_), stream(stream_), ranges(all), leaving(all) {}

    // What every put and take touches, in two cache lines: threads of one stream hand it to each
    // other with the lock.
    alignas(64) BriefMutex lock;
    // The stream has ended; what is freed later waits for its last fence.
    bool ended = false;
    std::uint64_t small_bytes = 0;
    std::uint64_t bytes_since_fence = 0;  // put here since the last recorded fence

  private:
    ClassSet filled_;  // classes with blocks

  public:
    std::uint64_t hits = 0;  // requests served from here since the last reset
    // The thread cache that overflowed last. Only to compare: it may be gone.
    const ThreadCache* spilled_by = nullptr;
    Fences fences;  // begins with the number that a put reads
    const std::uint32_t number;
    StreamRef stream;
    Fences::Number last_fence = 0;
    Fences::Number awaited = 0;         // a number that is waited for and has no event yet
    std::uint64_t recorded = 0;         // fences recorded since the last reset
    std::array<Bin, kFirstRange> bins;  // of small blocks, by class
    FreeRanges ranges;                  // large blocks
    FreeRanges leaving;                 // ... that become idle when their work is done
    bool keeps_blocks = false;          // ranges are neither cut nor joined: a tool knows them
    std::uint64_t ranges_unneeded = 0;  // bytes; as in a bin

    std::uint64_t bytes() const { return small_bytes + ranges.bytes() + leaving.bytes(); }
    void put(BlockRef block) { put(block.slab->index, {&block, 1}); }
    // Several blocks of a class, or none if it throws for lack of host memory. Returns their bytes.
    std::uint64_t put(ClassIndex index, std::span<const BlockRef> blocks) {
        std::uint64_t sum = 0;
        if (is_range(index)) {
            for (const BlockRef& block : blocks) sum += put_range(*block.slab);
            return sum;
        }
        make_room(index, blocks.size());
        const Fences::Number fence = fence_of_free();
        for (const BlockRef& block : blocks) {
            block.block().set(State::stream_cached, number, 0);
            sum += block.bytes();
            bins[index].blocks.push_back({block, fence});
        }
        bytes_since_fence += sum;
        small_bytes += sum;
        if (!blocks.empty()) filled_.set(index);
        return sum;
    }
    // A large block. Cannot fail. Returns its bytes.
    std::uint64_t put_range(Slab& range) {
        const std::uint64_t bytes = range.block_bytes;
        range.only.set(State::stream_cached, number, 0);
        ranges.put(range, fence_of_free());
        bytes_since_fence += bytes;
        return bytes;
    }
    // A small block that is free since the given fence.
    void put_behind(const Entry& entry) {
        entry.block.block().set(State::stream_cached, number, 0);
        const ClassIndex index = entry.block.slab->index;
        auto& blocks = bins[index].blocks;
        blocks.insert(std::ranges::upper_bound(blocks, entry.fence, {}, &Entry::fence), entry);
        small_bytes += entry.block.bytes();
        filled_.set(index);
    }
    // A large block of exactly so many bytes, for the stream itself: one that has its size, or the
    // best fit after neighbours were joined. No driver call.
    BlockRef take_range(std::uint64_t wanted) {
        Slab* const range = ranges.take_exact(wanted);
        return range != nullptr ? BlockRef{range, 0} : take_best(wanted);
    }
    BlockRef take_best(std::uint64_t wanted) {
        if (keeps_blocks || ranges.bytes() < wanted) return {};
        return {ranges.take_best(wanted), 0};
    }
    // A block for the stream itself.
    BlockRef take_own(ClassIndex index, std::uint64_t wanted) {
        return is_range(index) ? take_range(wanted) : take_newest(index);
    }
    // Another block of a class that the stream has ready: no range is joined or cut for it.
    BlockRef take_same(ClassIndex index) {
        return is_range(index) ? BlockRef{ranges.take_exact(class_bytes(index)), 0}
                               : take_newest(index);
    }
    // Whether it is worth looking for a block.
    bool may_have(ClassIndex index, std::uint64_t wanted) const {
        return is_range(index) ? ranges.bytes() >= wanted : !bins[index].blocks.empty();
    }
    // Takes one small block by its position in the bin of its class.
    Entry take_at(ClassIndex index, std::size_t at) {
        Bin& bin = bins[index];
        const Entry stream_cached = bin.blocks[at];
        bin.blocks.erase(bin.blocks.begin() + static_cast<std::ptrdiff_t>(at));
        bin.leaving -= at < bin.leaving;
        small_bytes -= stream_cached.block.bytes();
        note_taken(index);
        return stream_cached;
    }
    // The first small class from this one on that has blocks; kClasses: none.
    ClassIndex next_filled(ClassIndex from) const { return filled_.next(from); }
    // So that `count` puts of a class cannot fail.
    void make_room(ClassIndex index, std::size_t count) {
        if (is_range(index)) return;
        auto& blocks = bins[index].blocks;
        const std::size_t needed = blocks.size() + count;
        if (needed > blocks.capacity()) blocks.reserve(std::max(needed, 2 * blocks.size()));
    }
    // The newest block of a small class, for the stream itself.
    BlockRef take_newest(ClassIndex index) {
        const std::size_t held = bins[index].blocks.size();
        return held > 0 ? take_at(index, held - 1).block : BlockRef{};
    }
    // A block for another stream that waits on the GPU until its work is done: the oldest of a
    // small class, or the best fit of the free ranges.
    BlockRef take_after_wait(ClassIndex index, std::uint64_t wanted, CUstream waits) {
        Slab* range = nullptr;
        Fences::Number fence = 0;
        if (is_range(index)) {
            range = ranges.best(wanted);
            if (range == nullptr) return {};
            fence = range->fence;
        } else {
            if (bins[index].blocks.empty()) return {};
            fence = bins[index].blocks.front().fence;
        }
        if (!fences.is_recorded(fence)) record_fence();
        if (!is_broken(Rule::stream_waits_on_the_gpu) && !fences.wait_on_gpu(fence, waits)) {
            return {};
        }
        if (range != nullptr) return {ranges.take_front(*range, wanted), 0};
        return take_at(index, 0).block;
    }
    // Up to `most` of the oldest blocks of a small class whose fences have passed, for any stream.
    void take_passed(ClassIndex index, std::size_t most, std::vector<BlockRef>& out) {
        Bin& bin = bins[index];
        std::size_t count = 0;
        while (count < bin.blocks.size() && count < most &&
               fences.has_passed(bin.blocks[count].fence)) {
            out.push_back(bin.blocks[count].block);
            small_bytes -= bin.blocks[count].block.bytes();
            ++count;
        }
        bin.blocks.erase(bin.blocks.begin(),
                         bin.blocks.begin() + static_cast<std::ptrdiff_t>(count));
        bin.leaving -= std::min(bin.leaving, count);
        note_taken(index);
    }
    bool has_unfenced() const {
        if (awaited != 0 && !fences.is_recorded(awaited) && !fences.has_passed(awaited))
            return true;
        if (bytes_since_fence == 0) return false;
        for (const FreeRanges* each : {&ranges, &leaving}) {
            if (!each->empty() && !fences.is_recorded(each->newest())) return true;
        }
        for (ClassIndex index = next_filled(0); index < kClasses; index = next_filled(index + 1)) {
            if (!fences.is_recorded(bins[index].blocks.back().fence)) return true;
        }
        return false;
    }
    // Whether work may be running on what is here.
    bool has_work() const {
        for (const FreeRanges* each : {&ranges, &leaving}) {
            if (!each->empty() && !fences.has_passed(each->newest())) return true;
        }
        for (ClassIndex index = next_filled(0); index < kClasses; index = next_filled(index + 1)) {
            if (!fences.has_passed(bins[index].blocks.back().fence)) return true;
        }
        return false;
    }
    // Whether any thread may use the stream's handle, also one that was not just given the stream.
    // The handle of the per-thread default stream means a different stream on every thread.
    bool can_record_fence() const {
        return stream.durable && !ended && stream.capture == 0 &&
               stream.handle != VRAMKIT_STREAM_PER_THREAD;
    }
    // Records a fence behind the blocks that have none, if this thread may use the handle.
    void record_fence() {
        if (can_record_fence() && has_unfenced()) record();
    }
    // The same on a thread that was just given the stream.
    void record_fence_here() {
        if (names_the_stream_here() && has_unfenced()) record();
    }
    // Records a fence behind all work that the stream holds now, on a thread that was just given
    // the stream. If that fails, a later call records it, or a device sync takes its place.
    Fences::Number fence_point_here() {
        const Fences::Number point = fences.open();
        if (stream.capture == 0 && names_the_stream_here()) record();
        if (!fences.is_recorded(point)) awaited = point;
        return point;
    }
    // The point up to which the stream holds work now. If its handle cannot be used here, a later
    // call that can records the fence.
    Fences::Number point_now(bool given) {
        if (ended) return last_fence;
        if (given || can_record_fence()) return fence_point_here();
        awaited = fences.open();
        return awaited;
    }
    // Whether the work before a point is done. Never waits.
    bool is_past(Fences::Number point) {
        if (!fences.is_recorded(point) && can_record_fence()) record();
        fences.poll();
        return fences.has_passed(point);
    }
    // The stream is about to be destroyed: records the last fence while it lives.
    void end() {
        last_fence = fence_point_here();
        ended = true;
    }

  private:
    // What a block waits for that is freed now.
    Fences::Number fence_of_free() const {
        if (ended) return last_fence;
        return is_broken(Rule::fence_is_behind_the_free) ? fences.open() - 1 : fences.open();
    }
    void note_taken(ClassIndex index) {
        Bin& bin = bins[index];
        bin.low = std::min(bin.low, bin.blocks.size());
        if (bin.blocks.empty()) filled_.clear(index);
    }
    void record() {
        if (!fences.record(stream.handle)) return;
        ++recorded;
        bytes_since_fence = 0;
    }
    bool names_the_stream_here() const {
        if (stream.handle != VRAMKIT_STREAM_PER_THREAD) return true;
        // Asking a captured stream for its id breaks the capture.
        if (is_captured(fences.call(), stream.handle)) return false;
        unsigned long long id = 0;
        return fences.call().cuStreamGetId(stream.handle, &id) == CUDA_SUCCESS && id == stream.id;
    }
};

}  // namespace vramkit::pool
