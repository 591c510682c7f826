// Happens-before by vector clocks, and an interval map of the last accesses to every byte.
#include "sim/checker/checker.h"

#include <algorithm>

namespace vramkit::sim {
namespace {

// Takes the place of everything before it, and races with anything.
bool exclusive(Use use) { return use != Use::read && use != Use::atomic; }

bool conflict(Use a, Use b) { return exclusive(a) || exclusive(b) || a != b; }

Mark mark_of(const Actor& actor, const Range& range, Use use, const Site& site) {
    return Mark{.component = actor.component,
                .time = actor.clock.at(actor.component),
                .stream = actor.stream,
                .delta = range.delta,
                .site = site,
                .use = use};
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

std::shared_ptr<Deferred> Checker::defer(const Actor& actor) {
    auto point = std::make_shared<Deferred>();
    point->actor = actor;
    drop_told();
    deferred_.push_back(point);
    return point;
}

void Checker::drop_told() {
    std::erase_if(deferred_, [](const auto& each) { return each.expired(); });
}

bool Checker::awaits_deferred() {
    drop_told();
    return !deferred_.empty();
}

// Clocks of a component never fall: once one of its accesses is after a point, all later ones are.
void Checker::note_followers(const Actor& actor) {
    drop_told();
    for (const auto& each : deferred_) {
        const std::shared_ptr<Deferred> point = each.lock();
        const Actor& at = point->actor;
        if (actor.clock.at(at.component) < at.clock.at(at.component)) continue;
        point->followed.try_emplace(actor.component, actor.clock.at(actor.component));
    }
}

void Checker::host_waited(const Clock& clock) {
    host_.join(clock);
    ++host_version_;
}

// Splits the segment that spans `at`, if there is one.
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
        if (conflict(earlier.use, mark.use) && clock.at(earlier.component) < earlier.time) {
            report_pair(earlier, mark, begin, end);
        }
    };
    compare(segment.write);
    for (const Mark& other : segment.others) compare(other);
}

void Checker::store(Segment& segment, const Mark& mark) {
    if (exclusive(mark.use)) {
        segment.write = mark;
        segment.others.clear();
        return;
    }
    std::erase_if(segment.others, [&](const Mark& other) {
        return (other.component == mark.component && other.use == mark.use) || host_knows(other);
    });
    segment.others.push_back(mark);
}

// Accesses that come after the point stay, and stand for it where they would have replaced it.
void Checker::store_deferred(Segment& segment, const Mark& mark, const Deferred& point) {
    if (segment.write.time != 0 && point.is_before(segment.write)) return;
    if (exclusive(mark.use)) {
        segment.write = mark;
        std::erase_if(segment.others, [&](const Mark& other) { return !point.is_before(other); });
        return;
    }
    for (const Mark& other : segment.others) {
        const bool same = other.component == mark.component && other.use == mark.use;
        if (same && point.is_before(other)) return;
    }
    store(segment, mark);
}

template <class Visit>
void Checker::each_segment(const Range& range, Visit visit) {
    auto at = history_.lower_bound(range.begin);
    std::uint64_t begin = range.begin;
    while (begin < range.end) {
        if (at == history_.end() || at->first > begin) {
            const std::uint64_t end =
                at == history_.end() ? range.end : std::min(range.end, at->first);
            at = history_.emplace_hint(at, begin, Segment{end, {}, {}});
        }
        visit(at->first, at->second);
        begin = at->second.end;
        ++at;
    }
}

bool Checker::use(const Actor& actor, const Range& range, Use use, const Site& site) {
    if (range.begin == range.end) return true;
    const Mark mark = mark_of(actor, range, use, site);
    if (!deferred_.empty()) note_followers(actor);
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
    if (exclusive(use)) {
        // One write covers it all: neighbouring pieces become one segment again.
        while (at != history_.end() && at->first < range.end) at = history_.erase(at);
        history_.emplace_hint(at, range.begin, Segment{range.end, mark, {}});
    } else {
        each_segment(range, [&](std::uint64_t, Segment& segment) { store(segment, mark); });
    }
    if (history_.size() > prune_at_) prune();
    return idle;
}

void Checker::deferred_use(const Deferred& point, const Range& range, Use use, const Site& site) {
    const Mark mark = mark_of(point.actor, range, use, site);
    if (!freed_.empty()) check_freed(range, mark, &point);
    split(range.begin);
    split(range.end);
    each_segment(range, [&](std::uint64_t begin, Segment& segment) {
        Segment before = segment;
        if (point.is_before(before.write)) before.write = Mark{};
        std::erase_if(before.others, [&](const Mark& other) { return point.is_before(other); });
        bool idle = true;
        judge(before, begin, segment.end, point.actor.clock, mark, idle);
        store_deferred(segment, mark, point);
    });
    if (history_.size() > prune_at_) prune();
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
        for (const Mark& other : each->second.others) visit(other, begin, end);
    }
}

void Checker::released(const Range& range, bool implicit, const Site& site) {
    const Mark mark{.delta = range.delta, .site = site, .use = Use::free, .host = true};
    each_mark(range, [&](const Mark& earlier, std::uint64_t begin, std::uint64_t end) {
        // Bytes mapped twice: only work that goes through the range that vanishes is hurt.
        if (host_knows(earlier) || earlier.delta != range.delta) return;
        reports.add(implicit ? ReportKind::implicit_wait : ReportKind::free_in_use, earlier, mark,
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
        if (begin < range.begin) freed_.emplace(begin, Freed{range.begin, whole.mark, whole.held});
        if (whole.end > range.end)
            freed_.emplace(range.end, Freed{whole.end, whole.mark, whole.held});
    }
}

void Checker::check_freed(const Range& range, const Mark& mark, const Deferred* before) {
    if (mark.use == Use::alloc) return;
    auto each = freed_.upper_bound(range.begin);
    if (each != freed_.begin() && std::prev(each)->second.end > range.begin) --each;
    for (; each != freed_.end() && each->first < range.end; ++each) {
        const Freed& freed = each->second;
        // The pool's own free, once it holds the block no longer.
        if (freed.held && mark.use == Use::free) continue;
        if (before != nullptr && !freed.mark.host && before->is_before(freed.mark)) continue;
        const std::uint64_t begin = std::max(each->first, range.begin);
        reports.add(ReportKind::use_after_free, freed.mark, mark, begin + range.delta,
                    std::min(freed.end, range.end) - begin);
    }
}

bool Checker::is_freed(std::uint64_t at) const {
    const auto after = freed_.upper_bound(at);
    return after != freed_.begin() && std::prev(after)->second.end > at;
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
    Mark mark = mark_of(actor, range, Use::free, site);
    // Of a block that was held, the program's own free is the one to name.
    const auto held = freed_.find(range.begin);
    if (held != freed_.end() && held->second.held) mark = held->second.mark;
    cut_freed(range);
    freed_[range.begin] = Freed{range.end, mark};
}

void Checker::block_held(const Actor& actor, const Range& range, const Site& site) {
    if (!deferred_.empty()) note_followers(actor);
    cut_freed(range);
    freed_[range.begin] = Freed{range.end, mark_of(actor, range, Use::free, site), true};
}

void Checker::pool_block_freed(Actor& actor, const Range& range, const Site& site) {
    issue(actor);
    if (!deferred_.empty()) note_followers(actor);
    const Mark mark = mark_of(actor, range, Use::free, site);
    each_mark(range, [&](const Mark& earlier, std::uint64_t begin, std::uint64_t end) {
        if (actor.clock.at(earlier.component) >= earlier.time) return;
        reports.add(ReportKind::free_in_use, earlier, mark, begin + range.delta, end - begin);
    });
    forget(range);
    freed_[range.begin] = Freed{range.end, mark};
}

void Checker::pool_block_freed_by_host(const Range& range, const Site& site) {
    const Mark mark{.delta = range.delta, .site = site, .use = Use::free, .host = true};
    each_mark(range, [&](const Mark& earlier, std::uint64_t begin, std::uint64_t end) {
        // What was allocated and never used need not be waited for.
        if (host_knows(earlier) || earlier.use == Use::alloc) return;
        reports.add(ReportKind::free_in_use, earlier, mark, begin + range.delta, end - begin);
    });
    forget(range);
    freed_[range.begin] = Freed{range.end, mark};
}

void Checker::deadlock(const Actor& actor, const Site& waits, const Site& site) {
    const Mark waiting{.component = actor.component, .stream = actor.stream, .site = waits};
    reports.add(ReportKind::deadlock, waiting, Mark{.site = site, .host = true}, 0, 0);
}

void Checker::report_pair(const Mark& first, const Mark& second, std::uint64_t begin,
                          std::uint64_t end) {
    // Issued before a cuMemFree that waited for it: ordered in fact, by nothing that is documented.
    const bool implicit = implicit_.at(first.component) >= first.time;
    reports.add(implicit ? ReportKind::implicit_wait : ReportKind::race, first, second,
                begin + second.delta, end - begin);
}

// Drops what the host has waited for. Amortised: runs when the history has doubled.
void Checker::prune() {
    for (auto each = history_.begin(); each != history_.end();) {
        Segment& segment = each->second;
        std::erase_if(segment.others, [&](const Mark& other) { return host_knows(other); });
        if (segment.others.empty() && (segment.write.time == 0 || host_knows(segment.write))) {
            each = history_.erase(each);
        } else {
            ++each;
        }
    }
    prune_at_ = std::max<std::size_t>(1024, 2 * history_.size());
}

}  // namespace vramkit::sim
