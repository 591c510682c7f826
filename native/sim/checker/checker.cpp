// Happens-before by vector clocks, and an interval map of the last accesses to every byte.
#include "sim/checker/checker.h"

#include <algorithm>

namespace vramkit::sim {
namespace {

constexpr std::size_t kMostReports = 1000;  // distinct pairs of sites; more help nobody

bool writes(Use use) { return use != Use::read; }

// Without stacks all calls of a Python program come from one address: the streams tell them apart.
bool same_access(const Mark& a, const Mark& b) {
    return a.site.call == b.site.call && a.site.call_site == b.site.call_site &&
           a.stream == b.stream && a.use == b.use;
}

}  // namespace

void Checker::open(Actor& actor, std::uint64_t stream) {
    actor.stream = stream;
    const auto reusable = std::find_if(closed_.begin(), closed_.end(), [&](const auto& entry) {
        return host_.at(entry.first) >= entry.second;
    });
    if (reusable != closed_.end()) {
        actor.component = reusable->first;
        closed_.erase(reusable);
        return;
    }
    actor.component = static_cast<Component>(last_time_.size());
    last_time_.push_back(0);
}

void Checker::close(const Actor& actor) {
    closed_.emplace_back(actor.component, last_time_[actor.component]);
}

void Checker::issue(Actor& actor) {
    if (actor.host_seen != host_version_) {
        actor.clock.join(host_);
        actor.host_seen = host_version_;
    }
    actor.clock.raise(actor.component, ++last_time_[actor.component]);
}

void Checker::host_waited(const Clock& clock) {
    host_.join(clock);
    ++host_version_;
}

// Makes `at` the border of a segment where one spans it.
void Checker::split(std::uint64_t at) {
    auto after = history_.lower_bound(at);
    if (after == history_.begin()) return;
    auto before = std::prev(after);
    if (before->second.end <= at) return;
    Segment right = before->second;
    before->second.end = at;
    history_.emplace_hint(after, at, std::move(right));
}

void Checker::judge(const Segment& segment, std::uint64_t begin, std::uint64_t end,
                    const Clock& clock, const Mark& mark, bool& idle) {
    const auto compare = [&](const Mark& earlier) {
        if (earlier.time == 0) return;
        if (!host_knows(earlier)) idle = false;
        const bool conflict = writes(earlier.use) || writes(mark.use);
        if (conflict && clock.at(earlier.component) < earlier.time) {
            report_pair(earlier, mark, begin, end);
        }
    };
    compare(segment.write);
    for (const Mark& read : segment.reads) compare(read);
}

void Checker::store(Segment& segment, const Mark& mark) {
    if (writes(mark.use)) {
        segment.write = mark;
        segment.reads.clear();
        return;
    }
    std::erase_if(segment.reads, [&](const Mark& read) {
        return read.component == mark.component || host_knows(read);
    });
    segment.reads.push_back(mark);
}

bool Checker::use(const Actor& actor, const Range& range, Use use, const Site& site) {
    if (range.begin == range.end) return true;
    const Mark mark{.component = actor.component,
                    .time = actor.clock.at(actor.component),
                    .stream = actor.stream,
                    .delta = range.delta,
                    .site = site,
                    .use = use};
    if (!freed_.empty()) check_freed(range, mark);
    bool idle = true;
    // The common case: the same bytes as before, in one segment.
    auto at = history_.find(range.begin);
    if (at != history_.end() && at->second.end == range.end) {
        judge(at->second, range.begin, range.end, actor.clock, mark, idle);
        store(at->second, mark);
        return idle;
    }
    split(range.begin);
    split(range.end);
    at = history_.lower_bound(range.begin);
    for (auto each = at; each != history_.end() && each->first < range.end; ++each) {
        judge(each->second, each->first, each->second.end, actor.clock, mark, idle);
    }
    if (writes(use)) {
        // One write covers it all: neighbouring pieces become one segment again.
        while (at != history_.end() && at->first < range.end) at = history_.erase(at);
        history_.emplace_hint(at, range.begin, Segment{range.end, mark, {}});
    } else {
        std::uint64_t begin = range.begin;
        while (begin < range.end) {
            if (at == history_.end() || at->first > begin) {
                const std::uint64_t end =
                    at == history_.end() ? range.end : std::min(range.end, at->first);
                at = history_.emplace_hint(at, begin, Segment{end, {}, {}});
            }
            store(at->second, mark);
            begin = at->second.end;
            ++at;
        }
    }
    if (history_.size() > prune_at_) prune();
    return idle;
}

void Checker::host_use(const Range& range, bool write, const Site& site) {
    const Mark mark{
        .delta = range.delta, .site = site, .use = write ? Use::write : Use::read, .host = true};
    if (!freed_.empty()) check_freed(range, mark);
    bool idle = true;
    auto each = history_.upper_bound(range.begin);
    if (each != history_.begin() && std::prev(each)->second.end > range.begin) --each;
    for (; each != history_.end() && each->first < range.end; ++each) {
        judge(each->second, std::max(each->first, range.begin),
              std::min(each->second.end, range.end), host_, mark, idle);
    }
}

template <class Visit>
void Checker::each_mark(const Range& range, Visit visit) const {
    auto each = history_.upper_bound(range.begin);
    if (each != history_.begin() && std::prev(each)->second.end > range.begin) --each;
    for (; each != history_.end() && each->first < range.end; ++each) {
        const std::uint64_t begin = std::max(each->first, range.begin);
        const std::uint64_t end = std::min(each->second.end, range.end);
        if (each->second.write.time != 0) visit(each->second.write, begin, end);
        for (const Mark& read : each->second.reads) visit(read, begin, end);
    }
}

void Checker::released(const Range& range, bool implicit, const Site& site) {
    const Mark mark{.delta = range.delta, .site = site, .use = Use::free, .host = true};
    each_mark(range, [&](const Mark& earlier, std::uint64_t begin, std::uint64_t end) {
        // Bytes mapped twice: only work that goes through the range that vanishes is hurt.
        if (host_knows(earlier) || earlier.delta != range.delta) return;
        add_report(implicit ? ReportKind::implicit_wait : ReportKind::free_in_use, earlier, mark,
                   begin + range.delta, end - begin);
    });
}

void Checker::forget(const Range& range) {
    split(range.begin);
    split(range.end);
    history_.erase(history_.lower_bound(range.begin), history_.lower_bound(range.end));
    cut_freed(range);
}

void Checker::cut_freed(const Range& range) {
    auto each = freed_.upper_bound(range.begin);
    if (each != freed_.begin() && std::prev(each)->second.end > range.begin) --each;
    while (each != freed_.end() && each->first < range.end) {
        const std::uint64_t begin = each->first;
        const Freed whole = each->second;
        each = freed_.erase(each);
        if (begin < range.begin) freed_.emplace(begin, Freed{range.begin, whole.mark});
        if (whole.end > range.end) freed_.emplace(range.end, Freed{whole.end, whole.mark});
    }
}

void Checker::check_freed(const Range& range, const Mark& mark) {
    auto each = freed_.upper_bound(range.begin);
    if (each != freed_.begin() && std::prev(each)->second.end > range.begin) --each;
    for (; each != freed_.end() && each->first < range.end; ++each) {
        if (mark.use == Use::alloc) continue;
        add_report(ReportKind::use_after_free, each->second.mark, mark,
                   std::max(each->first, range.begin) + range.delta,
                   std::min(each->second.end, range.end) - std::max(each->first, range.begin));
    }
}

void Checker::block_allocated(Actor& actor, const Range& range, const Site& site) {
    issue(actor);
    use(actor, range, Use::alloc, site);
    // A block may be cut from a larger freed one.
    cut_freed(range);
}

void Checker::block_freed(Actor& actor, const Range& range, const Site& site) {
    issue(actor);
    use(actor, range, Use::free, site);
    freed_[range.begin] = Freed{range.end, Mark{.component = actor.component,
                                                .time = actor.clock.at(actor.component),
                                                .stream = actor.stream,
                                                .delta = range.delta,
                                                .site = site,
                                                .use = Use::free}};
}

void Checker::pool_block_freed(Actor& actor, const Range& range, const Site& site) {
    issue(actor);
    const Mark mark{.component = actor.component,
                    .time = actor.clock.at(actor.component),
                    .stream = actor.stream,
                    .delta = range.delta,
                    .site = site,
                    .use = Use::free};
    each_mark(range, [&](const Mark& earlier, std::uint64_t begin, std::uint64_t end) {
        if (actor.clock.at(earlier.component) >= earlier.time) return;
        add_report(ReportKind::free_in_use, earlier, mark, begin + range.delta, end - begin);
    });
    forget(range);
    freed_[range.begin] = Freed{range.end, mark};
}

void Checker::pool_block_freed_by_host(const Range& range, const Site& site) {
    const Mark mark{.delta = range.delta, .site = site, .use = Use::free, .host = true};
    each_mark(range, [&](const Mark& earlier, std::uint64_t begin, std::uint64_t end) {
        // What was allocated and never used need not be waited for.
        if (host_knows(earlier) || earlier.use == Use::alloc) return;
        add_report(ReportKind::free_in_use, earlier, mark, begin + range.delta, end - begin);
    });
    forget(range);
    freed_[range.begin] = Freed{range.end, mark};
}

void Checker::deadlock(const Actor& actor, const Site& waits, const Site& site) {
    const Mark waiting{.component = actor.component, .stream = actor.stream, .site = waits};
    add_report(ReportKind::deadlock, waiting, Mark{.site = site, .host = true}, 0, 0);
}

void Checker::report_pair(const Mark& first, const Mark& second, std::uint64_t begin,
                          std::uint64_t end) {
    // Issued before a cuMemFree that waited for it: ordered in fact, by nothing that is documented.
    const bool implicit = implicit_.at(first.component) >= first.time;
    add_report(implicit ? ReportKind::implicit_wait : ReportKind::race, first, second,
               begin + second.delta, end - begin);
}

void Checker::add_report(ReportKind kind, const Mark& first, const Mark& second,
                         std::uint64_t address, std::uint64_t bytes) {
    for (Report& report : reports_) {
        if (report.kind == kind && same_access(report.first, first) &&
            same_access(report.second, second)) {
            ++report.count;
            return;
        }
    }
    if (reports_.size() < kMostReports) {
        reports_.push_back(Report{kind, address, bytes, first, second, 1});
    }
}

// Drops what the host has waited for. Amortised: runs when the history has doubled.
void Checker::prune() {
    for (auto each = history_.begin(); each != history_.end();) {
        Segment& segment = each->second;
        std::erase_if(segment.reads, [&](const Mark& read) { return host_knows(read); });
        if (segment.reads.empty() && (segment.write.time == 0 || host_knows(segment.write))) {
            each = history_.erase(each);
        } else {
            ++each;
        }
    }
    prune_at_ = std::max<std::size_t>(1024, 2 * history_.size());
}

}  // namespace vramkit::sim
