// Findings by their pair of call sites.
#include "sim/checker/report_list.h"

namespace vramkit::sim {

std::size_t ReportList::Hash::operator()(const Pair& pair) const {
    std::size_t hash = static_cast<std::size_t>(pair.kind);
    const auto mix = [&](std::uint64_t value) {
        hash = (hash ^ value) * std::size_t{0x9e3779b97f4a7c15};
        hash ^= hash >> 32;
    };
    for (const Side& side : {pair.first, pair.second}) {
        mix(side.call);
        mix(side.call_site);
        mix(side.stream);
        mix(static_cast<std::uint64_t>(side.use));
    }
    return hash;
}

void ReportList::add(ReportKind kind, const Mark& first, const Mark& second, std::uint64_t address,
                     std::uint64_t bytes) {
    // One wait that nothing ends is one deadlock, however many calls of the host run into it.
    const bool deadlock = kind == ReportKind::deadlock;
    const Pair pair{kind, side(first), deadlock ? Side{} : side(second)};
    const std::size_t next = reports_.size() < kMost ? reports_.size() : kMost;
    const auto [entry, added] = known_.try_emplace(pair, next);
    if (!added) {
        if (entry->second < kMost) ++reports_[entry->second].count;
    } else if (next < kMost) {
        reports_.push_back(Report{kind, address, bytes, first, second, 1});
    }
}

void ReportList::clear() {
    reports_.clear();
    known_.clear();
}

}  // namespace vramkit::sim
