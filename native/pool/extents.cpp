// Idle extents as long as they stay where they are: joined, cut, handed out, given back.
#include "pool/extents.h"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace vramkit::pool {
namespace {

// Neighbouring pieces of an extent.
struct Run {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
};

// The run of the fewest bytes, but `least` of them; of several the lowest. The extent has as many.
Run smallest_run(const Extent& extent, std::uint64_t least) {
    Run best{extent.address, extent.bytes};
    Run window{extent.address, 0};
    auto first = extent.pieces.begin();
    for (const Piece& piece : extent.pieces) {
        window.bytes += piece.bytes;
        while (window.bytes - first->bytes >= least) {
            window.address += first->bytes;
            window.bytes -= first->bytes;
            ++first;
        }
        if (window.bytes >= least && window.bytes < best.bytes) best = window;
    }
    return best;
}

}  // namespace

Extents::~Extents() {
    while (!idle_.empty()) destroy(remove(idle_.begin()->first).extent);
}

std::optional<Extent> Extents::create(std::uint64_t bytes, Failure& why) {
    const std::optional<Piece> piece = mappings_.create(bytes, why);
    if (!piece) return std::nullopt;
    const std::uint64_t address = mappings_.map({&*piece, 1}, why);
    if (address == 0) {
        mappings_.release(*piece);
        return std::nullopt;
    }
    return Extent{address, bytes, {*piece}};
}

void Extents::give(Extent extent, std::int64_t now) {
    Idle whole{std::move(extent), now};
    const auto append = [](Extent& front, const Extent& back) {
        front.bytes += back.bytes;
        front.pieces.insert(front.pieces.end(), back.pieces.begin(), back.pieces.end());
    };
    auto after = idle_.lower_bound(whole.extent.address);
    if (after != idle_.begin() && std::prev(after)->second.extent.end() == whole.extent.address) {
        Idle front = remove(std::prev(after)->first);
        append(front.extent, whole.extent);
        whole.extent = std::move(front.extent);
        whole.since = std::max(whole.since, front.since);
    }
    if (after != idle_.end() && after->first == whole.extent.end()) {
        const Idle back = remove(after->first);
        append(whole.extent, back.extent);
        whole.since = std::max(whole.since, back.since);
    }
    add(std::move(whole));
}

std::optional<Extent> Extents::take(std::uint64_t least, std::uint64_t most) {
    const auto whole = by_size_.lower_bound({least, 0});
    if (whole == by_size_.end()) return std::nullopt;
    // No run of a larger extent is better than a whole one of `least` bytes.
    std::uint64_t source = whole->second;
    Run best{source, whole->first};
    if (best.bytes > least) {
        std::uint64_t rest = 0;
        for (auto each = several_.lower_bound({least, 0}); each != several_.end(); ++each) {
            const Run run = smallest_run(idle_.at(each->second).extent, least);
            const std::uint64_t run_rest = each->first - run.bytes;
            if (std::tie(run.bytes, run_rest, run.address) <
                std::tie(best.bytes, rest, best.address)) {
                best = run;
                rest = run_rest;
                source = each->second;
            }
            // Those behind are larger and leave more.
            if (best.bytes == least) break;
        }
    }
    if (best.bytes > most) return std::nullopt;
    if (best.bytes == idle_.at(source).extent.bytes) return remove(source).extent;
    Extent taken{best.address, best.bytes, {}};
    sift(source, [&](const Place& place) {
        if (place.address - best.address >= best.bytes) return false;
        taken.pieces.push_back(place.piece);
        return true;
    });
    return taken;
}

std::uint64_t Extents::release(std::uint64_t bytes, std::int64_t idle_before) {
    const std::uint64_t before = mapped();
    mappings_.unmap_old(kEveryPlace);
    std::vector<std::pair<std::int64_t, std::uint64_t>> oldest;  // since, address
    for (const auto& [address, idle] : idle_) {
        if (idle.since < idle_before) oldest.emplace_back(idle.since, address);
    }
    std::ranges::sort(oldest);
    // A driver that refuses to take a handle gets no more of them: they serve better idle.
    bool refused = false;
    const auto enough = [&] { return refused || before - mapped() >= bytes; };
    for (const auto& [since, address] : oldest) {
        if (enough()) break;
        sift(address, [&](const Place& place) {
            if (enough() || mappings_.has_old_place(place.piece)) return false;
            if (!mappings_.unmap(place)) return false;
            refused = !mappings_.release(place.piece);
            return true;
        });
    }
    return before - mapped();
}

std::uint64_t Extents::idle_smaller_than(std::uint64_t bytes) const {
    std::uint64_t sum = 0;
    for (auto each = by_size_.begin(); each != by_size_.end() && each->first < bytes; ++each) {
        sum += each->first;
    }
    return sum;
}

void Extents::destroy(const Extent& extent) {
    extent.each_place([&](const Place& place) {
        if (!mappings_.unmap(place)) mappings_.leave(place);
        mappings_.release(place.piece);
    });
}

void Extents::forget() {
    idle_.clear();
    by_size_.clear();
    several_.clear();
    idle_bytes_ = 0;
    mappings_.forget();
}

void Extents::add(Idle idle) {
    const std::uint64_t address = idle.extent.address;
    idle_bytes_ += idle.extent.bytes;
    by_size_.emplace(idle.extent.bytes, address);
    if (idle.extent.pieces.size() > 1) several_.emplace(idle.extent.bytes, address);
    idle_.emplace(address, std::move(idle));
}

Extents::Idle Extents::remove(std::uint64_t address) {
    Idle idle = std::move(idle_.extract(address).mapped());
    idle_bytes_ -= idle.extent.bytes;
    by_size_.erase({idle.extent.bytes, address});
    several_.erase({idle.extent.bytes, address});
    return idle;
}

}  // namespace vramkit::pool
