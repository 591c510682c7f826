// Memory of the pool: idle ranges and slabs, memory mapped ahead of need and given back.
#include "pool/memory/device_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/rules.h"
#include "pool/streams/stream_cache.h"

namespace vramkit::pool {
namespace {

// Pieces unmapped, or given back, in one maintenance step: about 20 and 40 us each with the pool's
// lock held.
constexpr std::size_t kUnmapsAtOnce = 64;
constexpr std::size_t kReleasesAtOnce = 32;

// New pieces have a 24th of what is needed, or a part of what the pool holds: memory that cannot
// move because a part of its piece is in use is then a small part of all, and many small pieces,
// which cost as much as large ones, are created only while the pool is small.
constexpr std::uint64_t kPartOfNeed = 24;
constexpr std::uint64_t kPartOfHeld = 1024;
constexpr std::uint64_t kPartOfMost = 512;  // ... and never more of what the pool may have
constexpr std::uint64_t kPartOfHeldInHurry = 64;
constexpr std::uint64_t kLeastPiece = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostPiece = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostAhead = std::uint64_t{32} << 20;
constexpr std::uint64_t kAheadUpTo = 4;

}  // namespace

bool DeviceMemory::open(const Config& config, Failure& why) {
    addresses_ = config.nvtx ? Addresses::allocate(card_.call, round_up(config.limit, kPage), why)
                             : Addresses::reserve(card_.call, card_.bytes, why);
    if (addresses_ == nullptr) {
        if (config.nvtx && why.kind == Failure::Kind::out_of_memory) {
            why.message = "nvtx takes the limit of " + std::to_string(config.limit) +
                          " bytes at once, and the card has not as much free: lower the limit";
        }
        return false;
    }
    page_map_ = PageMap::over(addresses_->base(), addresses_->bytes());
    if (page_map_ == nullptr) {
        why = Failure::bad_value("no host memory for the pool's table of addresses");
        return false;
    }
    card_.checker.region(addresses_->base(), addresses_->bytes());
    if (config.nvtx) {
        nvtx_ = NvtxMarks::make(addresses_->allocation(), addresses_->allocation_bytes());
    }
    ranges_ = std::make_unique<Ranges>(*page_map_);
    slabs_ = std::make_unique<Slabs>(*page_map_);
    idle_ = std::make_unique<FreeRanges>(*ranges_);
    // Last: is_open() goes by it.
    pieces_ = std::make_unique<Pieces>(card_.call, card_.device, *addresses_);
    configure(config);
    thrift_at_ = card_.now();
    if (is_fixed()) {
        give_idle_extent({addresses_->base(), addresses_->bytes()});
        reset_peak();
    }
    return true;
}

void DeviceMemory::configure(const Config& config) {
    limit_ = config.limit;
    unmaps_itself_ = !config.background;
    most_bytes_.store(limit_ > 0 ? std::min(limit_, card_.bytes) : card_.bytes,
                      std::memory_order_relaxed);
}

std::uint64_t DeviceMemory::may_grow() const {
    const std::uint64_t most = limit_ > 0 ? limit_ : card_.bytes;
    // Fixed memory is all there; only blocks straight from the driver are taken beside it.
    const std::uint64_t taken = is_fixed() ? in_use() + direct_bytes_ : reserved();
    return (most - std::min(most, taken)) / kPage * kPage;
}

std::uint64_t DeviceMemory::piece_bytes(std::uint64_t bytes, Thrift thrift) const {
    const std::uint64_t by_held =
        thrift == Thrift::none ? mapped() / kPartOfHeldInHurry : mapped() / kPartOfHeld;
    const std::uint64_t part = most_bytes_ / kPartOfMost / kPage * kPage;
    const std::uint64_t least = std::clamp(2 * part, kPage, kLeastPiece);
    return std::clamp(round_up(std::max(bytes / kPartOfNeed, by_held), kPage), least,
                      std::clamp(part, least, kMostPiece));
}

void DeviceMemory::add_direct(std::uint64_t bytes) {
    direct_bytes_ += bytes;
    peak_reserved_ = std::max(peak_reserved_, reserved());
}

void DeviceMemory::note_growth() {
    ++counters_.device_growths;
    peak_reserved_ = std::max(peak_reserved_, reserved());
    grown_ = true;
}

BlockRef DeviceMemory::take_idle_range(std::uint64_t bytes) {
    if (idle_->bytes() < bytes) return {};
    return {idle_->take_best(bytes), 0};
}

BlockRef DeviceMemory::take_idle_small(ClassIndex index, std::uint64_t batch) {
    if (const BlockRef block = slabs_->take(index); block.slab != nullptr) return block;
    const BlockRef range{idle_->take_low(slab_bytes(index, batch)), 0};
    if (range.slab == nullptr) return {};
    make_slab(*range.slab, index);
    look_ahead();
    return slabs_->take(index);
}

Slab& DeviceMemory::make_slab(Slab& range, ClassIndex index) {
    const Extent extent = range.extent();
    ranges_->end(range);
    return slabs_->make(index, extent);
}

bool DeviceMemory::make_slab_of(StreamCache& own, ClassIndex index, std::uint64_t batch) {
    const std::lock_guard guard(own.lock);
    if (own.ended) return false;
    const std::uint64_t bytes = slab_bytes(index, batch);
    own.make_room(index, bytes / class_bytes(index));
    const BlockRef range{own.keeps_blocks ? nullptr : own.ranges.take_low(bytes), 0};
    if (range.slab == nullptr) return false;
    const Fences::Number fence =
        is_broken(Rule::slab_keeps_fence_of_its_range) ? 0 : range.slab->fence;
    slabs_->take_all(make_slab(*range.slab, index),
                     [&](BlockRef block) { own.put_behind({block, fence}); });
    return true;
}

void DeviceMemory::join_idle_to(StreamCache& own) {
    const std::lock_guard guard(own.lock);
    if (own.ended) return;
    own.leaving.move_to(own.ranges, FreeRanges::kAll);
    if (own.ranges.empty()) return;
    idle_->join();
    idle_->each([&](Slab& range) {
        if (ranges_->before(range.address, &own.ranges) != nullptr ||
            ranges_->behind(range.extent().end(), &own.ranges) != nullptr) {
            idle_->take(range);
            range.record(0).set(State::stream_cached, own.number, 0);
            own.ranges.put(range, 0);
        }
        return true;
    });
}

void DeviceMemory::give_idle(BlockRef block) {
    Slab& slab = *block.slab;
    if (nvtx_ != nullptr) nvtx_->remove_block(block.address(), block.bytes());  // of a graph
    if (!slab.large) {
        if (const std::optional<Extent> extent = slabs_->give(block)) give_idle_extent(*extent);
        return;
    }
    block.block().set(State::idle, 0, 0);
    pieces_->note_idle(slab.extent(), card_.now());
    idle_->put(slab, 0);
}

void DeviceMemory::give_idle_extent(const Extent& extent) {
    pieces_->note_idle(extent, card_.now());
    idle_->put(ranges_->make(extent), 0);
}

void DeviceMemory::end_untouched_slabs() {
    for (const Extent& extent : slabs_->end_untouched()) give_idle_extent(extent);
}

std::uint64_t DeviceMemory::could_have(ClassIndex index, std::uint64_t bytes,
                                       std::uint64_t card_free) const {
    const std::uint64_t ready = is_range(index) ? 0 : slabs_->idle_blocks(index);
    return ready + (std::min(card_free, may_grow()) + idle_->bytes()) / bytes;
}

// Large blocks are all taken before any is given back, so that none is counted twice.
bool DeviceMemory::preallocate(ClassIndex index, std::uint64_t bytes, std::uint64_t count,
                               Failure& why) {
    if (!is_range(index)) {
        while (slabs_->idle_blocks(index) < count) {
            const std::uint64_t slab = slab_bytes(index, count - slabs_->idle_blocks(index));
            BlockRef range = take_idle_range(slab);
            if (range.slab == nullptr) range = make_range(slab, nullptr, Thrift::must, why).block;
            if (range.slab == nullptr) range = take_idle_range(slab_bytes(index, 1));
            if (range.slab == nullptr) return false;
            why = {};
            make_slab(*range.slab, index);
        }
        return true;
    }
    std::vector<BlockRef> ready;
    while (ready.size() < count) {
        BlockRef block = take_idle_range(bytes);
        if (block.slab == nullptr) block = make_range(bytes, nullptr, Thrift::must, why).block;
        if (block.slab == nullptr) break;
        ready.push_back(block);
    }
    for (const BlockRef& block : ready) give_idle(block);
    return ready.size() == count;
}

std::uint64_t DeviceMemory::release(std::int64_t idle_before, std::size_t at_most, bool* more) {
    const std::uint64_t before = mapped();
    pieces_->unmap_old(at_most);
    idle_->join();
    struct Old {
        std::int64_t since;
        Slab* range;
        Mapping mapping;
    };
    std::vector<Old> oldest;
    idle_->each([&](Slab& range) {
        if (range.bytes < kPage) return false;
        pieces_->each_whole(range.extent(), [&](const Mapping& mapping, std::int64_t since) {
            if (since < idle_before && pieces_->may_release(mapping)) {
                oldest.push_back({since, &range, mapping});
            }
            return true;
        });
        return true;
    });
    const bool all = oldest.size() <= at_most;
    if (!all) {
        std::ranges::stable_sort(oldest, {}, &Old::since);
        oldest.resize(at_most);
    }
    // By address: what is left of a range behind a piece holds the next ones.
    std::ranges::sort(oldest, {}, [](const Old& old) { return old.mapping.address; });
    Ranges::Spare spare;
    const Slab* whole = nullptr;
    Slab* range = nullptr;
    for (const Old& old : oldest) {
        if (old.range != whole) whole = range = old.range;
        ranges_->reserve(spare, 2);
        bool released = false;
        if (!pieces_->release(old.mapping, released)) continue;
        range = idle_->remove_part(*range, {old.mapping.address, old.mapping.piece.bytes}, spare);
        // If the driver refuses one piece, stop: the others are more useful idle.
        if (!released) break;
    }
    ranges_->keep(spare, 0);
    const std::uint64_t released_bytes = before - mapped();
    counters_.released_bytes += released_bytes;
    // Not if the driver refuses everything: then the others can wait for the next decay.
    if (more != nullptr && !all && released_bytes > 0) *more = true;
    return released_bytes;
}

std::uint64_t DeviceMemory::release_idle(std::int64_t idle_before) {
    return release(idle_before, kEveryMapping, nullptr);
}

std::uint64_t DeviceMemory::release_some(std::int64_t idle_before, bool& more) {
    return release(idle_before, kReleasesAtOnce, &more);
}

bool DeviceMemory::unmap_old() { return pieces_->unmap_old(kUnmapsAtOnce); }

void DeviceMemory::unmap_all_old() { pieces_->unmap_old(kEveryMapping); }

// About a thousandth of the card: little to any program.
std::uint64_t DeviceMemory::ahead_bytes() const {
    return std::clamp(most_bytes_ / 1024 / kPage * kPage, kPage, kMostAhead);
}

// A pool that holds more than a few times that grows seldom enough.
bool DeviceMemory::has_ahead() const {
    return idle_->bytes() >= ahead_bytes() / 2 || mapped() > kAheadUpTo * ahead_bytes();
}

// So that the thread that needs the next slab finds memory mapped.
void DeviceMemory::look_ahead() {
    if (ahead_wanted_ || has_ahead()) return;
    ahead_wanted_ = step_wanted_ = true;
}

void DeviceMemory::map_ahead() {
    if (!ahead_wanted_) return;
    ahead_wanted_ = !has_ahead();
    const std::uint64_t bytes = ahead_bytes();
    size_t free = 0, total = 0;
    if (!ahead_wanted_ || bytes > may_grow()) return;
    if (card_.call.cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) return;
    // Leave the last part of the card to other programs.
    if (free < total / 16) return;
    const std::uint64_t address = addresses_->take(bytes);
    Failure why;
    if (address == 0 || !pieces_->map(address, {}, bytes, piece_bytes(bytes, Thrift::earned), why))
        return;
    ahead_wanted_ = false;
    note_growth();
    give_idle_extent({address, bytes});
}

void DeviceMemory::drop_idle() {
    idle_->each([&](Slab& range) {
        idle_->take(range);
        return true;
    });
}

void DeviceMemory::close() {
    if (pieces_ != nullptr) {
        if (is_fixed() && in_use() == 0) {
            drop_idle();
            pieces_->forget();
        }
        if (mapped() > 0) return;
        page_map_->shut();
    }
    give_addresses_back();
}

void DeviceMemory::give_addresses_back() {
    if (addresses_ == nullptr) return;
    if (nvtx_ != nullptr) nvtx_->clear();  // no heap may remain in memory that is gone
    addresses_->release();
}

void DeviceMemory::give_everything_back() {
    pieces_ = nullptr;
    give_addresses_back();
}

void DeviceMemory::forget_driver() {
    direct_bytes_ = 0;
    drop_idle();
    pieces_->forget();
    page_map_->shut();
    addresses_->forget();
}

}  // namespace vramkit::pool
