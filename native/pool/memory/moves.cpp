// Memory is mapped where it is needed: pieces that are free as a whole, then new ones.
//
// A piece that moves is mapped a second time, and its old mapping is unmapped later. For idle
// memory that is safe at once. Memory that a stream has freed may still be used by that stream's
// work at the old address; for the same stream the order of the stream keeps old and new use apart,
// and the old mapping stays until the work is done. Nothing waits.
#include <algorithm>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>

#include "base/rules.h"
#include "pool/memory/device_memory.h"
#include "pool/streams/stream_cache.h"

namespace vramkit::pool {
namespace {

constexpr const char* kAddresses = "addresses of the pool";
// If no new memory may be taken, what moves may have one piece more than is needed: the addresses
// behind a range that is lengthened have room for it.
constexpr std::uint64_t kSlack = std::uint64_t{64} << 20;
// Pieces that a request moves while new memory may be had: so many, about 2.4 ms on an H200, for
// each GiB that it asks for, or each 3 GiB that the pool holds. The next requests move others.
constexpr std::size_t kMostMoved = 64;
constexpr std::uint64_t kHeldForThat = 3;
// More old mappings than this wake the background thread, which may sleep for seconds.
constexpr std::size_t kFewOld = 64;
// Old mappings that requests leave to it. They take the addresses behind free ranges, which then
// move instead of being lengthened: random blocks in a full pool of 1 GiB moved 1.1, 1.3 and 1.8
// times as many bytes with 64, 256 and any number of them as with none. And when they have all
// addresses, one request has to unmap them all.
constexpr std::size_t kMostOld = 256;
// Requests of less than a page grow by this part of what the pool holds.
constexpr std::uint64_t kPartForSmall = 1024;
// Moving pieces and collecting from caches costs time where growth costs memory. A program whose
// free memory is always in the wrong places would do it for ever, where a little more memory ends
// it. So the time is earned: by growth, as often as this ...
constexpr std::int64_t kTimesGrowth = 3;
// ... and by this part of the time that passes, of which not more is saved up than this.
constexpr std::int64_t kPartOfTime = 32;
constexpr std::int64_t kMostSavedNs = 100'000'000;
// ... unless the pool holds more than so many times what was in use at most, and more than thread
// caches may keep and this beside it.
constexpr std::uint64_t kTimesInUse = 3;
constexpr std::uint64_t kMoreThanInUse = std::uint64_t{64} << 20;

}  // namespace

// What is mapped where: behind a free range, or at new addresses.
struct DeviceMemory::Move {
    // Whole pieces of a free range, side by side.
    struct Run {
        Slab* range;
        bool own;  // of the stream, else idle
        Extent part;
    };
    Slab* base = nullptr;  // is lengthened
    bool own_base = false;
    std::uint64_t room = FreeRanges::kAll;  // addresses behind it
    std::vector<Run> runs;                  // by range, and by address
    std::vector<Mapping> pieces;            // of the runs
    std::uint64_t moved = 0;                // their bytes
    std::uint64_t create = 0;               // new bytes behind them
    std::uint64_t most_piece = kPage;
    Ranges::Spare spare;  // for what is left of the ranges

    void stay() {
        runs.clear();
        pieces.clear();
        moved = 0;
    }
    // visit(range, own, runs) for each range.
    template <class Visit>
    void each_range(Visit visit) const {
        for (auto run = runs.begin(); run != runs.end();) {
            const auto end = std::find_if(
                run, runs.end(), [&](const Run& other) { return other.range != run->range; });
            visit(*run->range, run->own, std::span(run, end));
            run = end;
        }
    }
};

// The largest free range with addresses behind it that nothing is mapped at.
void DeviceMemory::choose_base(Move& move, std::uint64_t bytes, const FreeRanges* own) const {
    const std::uint64_t slack = bytes > may_grow() ? kSlack : 0;
    for (const auto& [begin, hole] : addresses_->holes().ranges()) {
        Slab* const of_own = own != nullptr ? ranges_->before(begin, own) : nullptr;
        Slab* const range = of_own != nullptr ? of_own : ranges_->before(begin, idle_.get());
        if (range == nullptr) continue;
        if (range->bytes >= bytes || hole < bytes - range->bytes + slack) continue;
        if (move.base != nullptr && move.base->bytes >= range->bytes) continue;
        move.base = range;
        move.own_base = range == of_own;
        move.room = hole;
    }
}

// Until they have so many bytes. First from ranges that are too short for that, the largest
// pieces before others, as each costs the same; then from the shortest of the longer ones. So few
// short ranges are left, and the long ones serve others without a move. Taken from long ranges,
// each move left short ones behind, of which the next request needed more.
void DeviceMemory::choose_pieces(Move& move, FreeRanges* own, std::uint64_t bytes,
                                 std::size_t at_most) const {
    struct Candidate {
        Slab* range;
        bool own;
        Mapping mapping;
    };
    std::vector<Candidate> candidates;
    const auto look = [&](FreeRanges& from, bool is_own) {
        from.each([&](Slab& range) {
            if (range.bytes < kPage) return false;
            if (&range == move.base) return true;
            pieces_->each_whole(range.extent(), [&](const Mapping& mapping, std::int64_t) {
                candidates.push_back({&range, is_own, mapping});
                return true;
            });
            return true;
        });
    };
    look(*idle_, false);
    if (own != nullptr) look(*own, true);
    std::ranges::stable_sort(candidates, {}, [&](const Candidate& each) {
        const std::uint64_t length = each.range->bytes;
        const std::uint64_t piece = each.mapping.piece.bytes;
        return length > bytes ? std::tuple(length, std::uint64_t{0}, length)
                              : std::tuple(std::uint64_t{0}, ~piece, length);
    });
    move.stay();
    std::vector<Candidate> chosen;
    for (const Candidate& each : candidates) {
        if (chosen.size() >= at_most || move.moved >= bytes) break;
        const std::uint64_t piece = each.mapping.piece.bytes;
        if (piece > move.room - move.moved) continue;
        move.moved += piece;
        chosen.push_back(each);
    }
    std::ranges::sort(chosen, {}, [](const Candidate& each) { return each.mapping.address; });
    for (const auto& [range, is_own, mapping] : chosen) {
        move.pieces.push_back(mapping);
        const std::uint64_t piece = mapping.piece.bytes;
        if (!move.runs.empty() && move.runs.back().range == range &&
            move.runs.back().part.end() == mapping.address) {
            move.runs.back().part.bytes += piece;
        } else {
            move.runs.push_back({range, is_own, {mapping.address, piece}});
        }
    }
}

// Which pieces move where so many bytes are needed: as many as pay, and more if memory is short.
void DeviceMemory::choose_moves(Move& move, FreeRanges* own, std::uint64_t need, Thrift thrift) {
    const bool short_of_memory = need > may_grow();
    if (thrift == Thrift::none && !short_of_memory) return;
    const std::uint64_t part = std::max(need, mapped() / kHeldForThat);
    const auto most = std::max<std::size_t>(kMostMoved, part * kMostMoved >> 30);
    choose_pieces(move, own, need, thrift == Thrift::must ? kEveryMapping : most);
    if (short_of_memory && need > move.moved + may_grow()) {
        choose_pieces(move, own, need, kEveryMapping);
    }
    const auto cost = static_cast<std::int64_t>(move.pieces.size()) * kMoveNs;
    const bool pays = thrift == Thrift::must || (thrift == Thrift::earned && spend(cost));
    if (!pays && !short_of_memory) move.stay();
}

// Nobody else may take these while the driver is called without the lock of the stream cache.
void DeviceMemory::take_out(Move& move, StreamCache* own) {
    ranges_->reserve(move.spare, 2 * move.runs.size() + 1);
    const auto take = [&](Slab& range, bool of_own) {
        FreeRanges& from = of_own ? own->ranges : *idle_;
        // If this fence is not recorded yet, it must still be: the old mapping waits for it.
        if (of_own) own->awaited = std::max(own->awaited, range.fence);
        from.take(range);
    };
    if (move.base != nullptr) take(*move.base, move.own_base);
    move.each_range([&](Slab& range, bool of_own, auto) { take(range, of_own); });
}

void DeviceMemory::put_back(const Move& move, StreamCache* own) {
    std::unique_lock<BriefMutex> guard;
    if (own != nullptr) guard = std::unique_lock(own->lock);
    const auto put = [&](Slab& range, bool of_own) {
        (of_own ? own->ranges : *idle_).put_back(range);
    };
    move.each_range([&](Slab& range, bool of_own, auto) { put(range, of_own); });
    if (move.base != nullptr) put(*move.base, move.own_base);
}

// Returns the range of all that was mapped, with its base, behind the newest fence of its memory.
// Null and the reason: everything is as before.
Slab* DeviceMemory::carry_out(Move& move, const std::shared_ptr<StreamCache>& own, Failure& why) {
    const std::uint64_t bytes = move.moved + move.create;
    Ranges::Spare& spare = move.spare;
    std::uint64_t address = 0;
    bool mapped = false;
    try {
        if (move.base != nullptr) {
            const std::uint64_t behind = move.base->extent().end();
            if (addresses_->take_at(behind, bytes)) address = behind;
        } else {
            address = addresses_->take(bytes);
            if (address == 0) {
                unmap_all_old();
                address = addresses_->take(bytes);
            }
        }
        if (address == 0) note_shortage(kAddresses, why);
        mapped =
            address != 0 && pieces_->map(address, move.pieces, move.create, move.most_piece, why);
    } catch (...) {  // without host memory
        put_back(move, own.get());
        throw;
    }
    if (!mapped) {
        put_back(move, own.get());
        ranges_->keep(spare, 0);
        return nullptr;
    }
    std::unique_lock<BriefMutex> guard;
    if (own != nullptr) guard = std::unique_lock(own->lock);
    Fences::Number newest = move.own_base ? move.base->fence : 0;
    move.each_range([&](Slab& range, bool of_own, std::span<const Move::Run> runs) {
        FreeRanges& from = of_own ? own->ranges : *idle_;
        if (of_own) newest = std::max(newest, range.fence);
        from.put_back(range);
        Slab* rest = &range;
        for (const Move::Run& run : runs) rest = from.remove_part(*rest, run.part, spare);
    });
    const Done done = [own, newest] {
        const std::lock_guard done_guard(own->lock);
        return is_broken(Rule::old_mapping_stays_until_work_is_done) || own->is_past(newest);
    };
    auto piece = move.pieces.begin();
    for (const Move::Run& run : move.runs) {
        for (std::uint64_t at = run.part.address; at < run.part.end(); ++piece) {
            pieces_->leave(*piece, run.own ? done : Done());
            at += piece->piece.bytes;
        }
    }
    Slab& made = ranges_->make({address, bytes});
    if (move.create > 0) note_growth();
    counters_.remapped_bytes += move.moved;
    const std::uint64_t created = (move.create + move.most_piece - 1) / move.most_piece;
    thrift_ns_ += kTimesGrowth * static_cast<std::int64_t>(created) * kMoveNs;
    Slab* whole = &made;
    if (move.base != nullptr) {
        ranges_->join(*move.base, made, spare);
        whole = move.base;
    }
    whole->fence = newest;
    ranges_->keep(spare, 0);
    return whole;
}

DeviceMemory::Made DeviceMemory::make_range(std::uint64_t bytes,
                                            const std::shared_ptr<StreamCache>& own, Thrift thrift,
                                            Failure& why) {
    if (is_fixed()) {
        why = Failure::out_of_memory();
        return {};
    }
    // More old mappings than came the last time: where nobody calls step(), or not often enough,
    // they would pile up.
    if (unmaps_itself_ || pieces_->old_mappings() > kMostOld) {
        pieces_->unmap_old(2 * std::exchange(moved_last_, 0));
    }
    Move move;
    bool of_own = false;  // the stream has not ended
    {
        std::unique_lock<BriefMutex> guard;
        if (own != nullptr) guard = std::unique_lock(own->lock);
        of_own = own != nullptr && !own->ended;
        idle_->join();
        if (of_own) own->ranges.join();
        choose_base(move, bytes, of_own ? &own->ranges : nullptr);
        const std::uint64_t have = move.base != nullptr ? move.base->extent().bytes : 0;
        const std::uint64_t need = round_up(bytes - have, kPage);
        choose_moves(move, of_own ? &own->ranges : nullptr, need, thrift);
        move.create = need - std::min(need, move.moved);
        if (move.create > may_grow()) {
            note_shortage("", why);
            return {};
        }
        move.most_piece = piece_bytes(move.create, thrift);
        // The next requests need no driver call: small ones, and in a hurry any.
        if (move.create > 0 && (bytes < kPage || thrift == Thrift::none)) {
            const std::uint64_t least = thrift == Thrift::none
                                            ? move.most_piece
                                            : round_up(mapped() / kPartForSmall, kPage);
            move.create =
                std::max(move.create,
                         std::min({least, move.most_piece, may_grow(), move.room - move.moved}));
        }
        take_out(move, own.get());
    }
    Slab* const range = carry_out(move, own, why);
    if (range == nullptr) return {};
    why = {};
    moved_last_ = move.pieces.size();
    step_wanted_ |= pieces_->old_mappings() > kFewOld;
    if (range->bytes > bytes) {
        Ranges::Spare spare;
        Slab& rest = ranges_->cut(*range, bytes, spare);
        // In a hurry others get it too, unless memory of the stream is in it.
        const bool has_own = std::ranges::any_of(move.runs, &Move::Run::own);
        if (has_own || (of_own && thrift != Thrift::none)) {
            const std::lock_guard guard(own->lock);
            rest.record(0).set(State::stream_cached, own->number, 0);
            own->ranges.put(
                rest, is_broken(Rule::rest_of_mapped_range_keeps_newest_fence) ? 0 : range->fence);
        } else {
            rest.record(0).set(State::idle, 0, 0);
            pieces_->note_idle(rest.extent(), card_.now());
            idle_->put(rest, 0);
        }
    }
    return {{range, 0}, move.create > 0};
}

bool DeviceMemory::lacks_addresses(const Failure& why) {
    return why.kind == Failure::Kind::out_of_memory && why.call == kAddresses;
}

bool DeviceMemory::spend(std::int64_t ns) {
    const std::int64_t now = std::max(card_.now(), thrift_at_);
    if (thrift_ns_ < kMostSavedNs) {
        thrift_ns_ = std::min(thrift_ns_ + (now - thrift_at_) / kPartOfTime, kMostSavedNs);
    }
    thrift_at_ = now;
    if (ns > thrift_ns_) return false;
    thrift_ns_ -= ns;
    return true;
}

bool DeviceMemory::holds_too_much(std::uint64_t bytes, std::uint64_t peak_in_use,
                                  std::uint64_t cached) const {
    return reserved() + bytes > kTimesInUse * peak_in_use + cached + kMoreThanInUse;
}

DeviceMemory::Made DeviceMemory::make_small(ClassIndex index, std::uint64_t batch, Failure& why) {
    const Made range = make_range(slab_bytes(index, batch), nullptr, Thrift::earned, why);
    if (range.block.slab == nullptr) return {};
    make_slab(*range.block.slab, index);
    look_ahead();
    return {slabs_->take(index), range.grown};
}

// The range with the most whole pieces stays where it is, of those with enough addresses behind
// them that nothing is mapped at.
std::uint64_t DeviceMemory::join_idle(Failure& why) {
    end_untouched_slabs();
    if (is_fixed()) return 0;
    idle_->join();
    struct Candidate {
        Slab* range;
        std::uint64_t whole, hole;
    };
    std::vector<Candidate> candidates;
    std::uint64_t all = 0;
    const auto& holes = addresses_->holes().ranges();
    idle_->each([&](Slab& range) {
        if (range.bytes < kPage) return false;
        std::uint64_t whole = 0;
        pieces_->each_whole(range.extent(), [&](const Mapping& mapping, std::int64_t) {
            whole += mapping.piece.bytes;
            return true;
        });
        const auto hole = holes.find(range.extent().end());
        if (whole > 0)
            candidates.push_back({&range, whole, hole != holes.end() ? hole->second : 0});
        all += whole;
        return true;
    });
    if (candidates.size() < 2) return 0;
    Move move;
    std::uint64_t most = 0;
    for (const auto& [range, whole, hole] : candidates) {
        if (whole <= most || hole < all - whole) continue;
        move.base = range;
        most = whole;
    }
    choose_pieces(move, nullptr, FreeRanges::kAll, kEveryMapping);
    take_out(move, nullptr);
    Slab* const range = carry_out(move, nullptr, why);
    if (range == nullptr) {
        // Old mappings whose work is not done have the addresses: that is for later.
        if (lacks_addresses(why)) why = {};
        return 0;
    }
    range->only.set(State::idle, 0, 0);
    idle_->put(*range, 0);
    return move.moved;
}

}  // namespace vramkit::pool
