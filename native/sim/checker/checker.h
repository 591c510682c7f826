// The checker: which accesses to memory are ordered by what CUDA documents, and which are not.
//
// It knows nothing of time. Every access is judged when it is issued, against all unordered earlier
// ones, so a race is reported whatever the timing happened to be. The one exception are accesses of
// host functions, which are known only when the function runs (Deferred).
//
// Invariants of the history:
//   segments never overlap; each has at most one write, and at most one read and one atomic access
//   a component;
//   a mark at (component c, time t) may be dropped once host.at(c) >= t: everything issued later
//   is ordered after it, because every operation starts from the host's clock.
// So the history is bounded by the segments touched since the last synchronisation, times streams.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/checker/clock.h"
#include "sim/checker/report.h"
#include "sim/checker/report_list.h"

namespace vramkit::sim {

// Bytes [begin, end) of physical or host memory; delta + physical is the address the program used.
struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t delta = 0;
};

// A chain of ordered work as the checker sees it: one stream.
struct Actor {
    Component component = 0;
    std::uint64_t stream = 0;  // the id that reports name
    Clock clock;
    std::uint64_t host_seen = 0;  // version of the host's clock that was joined last
};

// A point of a stream whose accesses are told later than it was issued: a host function. What was
// issued in between and comes after it must not be taken for unordered.
struct Deferred {
    Actor actor;                   // as it was at that point
    std::uint64_t generation = 0;  // of the machine
    // By component, the first time at which its accesses are ordered after this point.
    std::unordered_map<Component, std::uint64_t> followed;

    bool is_before(const Mark& mark) const {
        const auto found = followed.find(mark.component);
        return found != followed.end() && mark.time >= found->second;
    }
};

class Checker {
  public:
    // Streams come and go; a component is used again once the host has seen its last work.
    void open(Actor& actor, std::uint64_t stream);
    void close(const Actor& actor);

    // Program order: what is issued on the actor from now on is ordered after all the host knows.
    // Every operation and every record calls it once.
    void issue(Actor& actor);
    static void order_after(Actor& actor, const Clock& earlier) { actor.clock.join(earlier); }
    // The newest operation of the actor tells its accesses later, while somebody holds this.
    std::shared_ptr<Deferred> defer(const Actor& actor);
    // Whether there are accesses to come of which nothing is known yet.
    bool awaits_deferred();

    // The host has waited for this, by a call that documents it.
    void host_waited(const Clock& clock);
    // A call waited that does not document it (cuMemFree): relying on that is a finding of its own.
    void host_waited_implicitly(const Clock& clock) { implicit_.join(clock); }

    // The actor's operation uses these bytes. True: nothing unordered with the host uses them now.
    bool use(const Actor& actor, const Range& range, Use use, const Site& site);
    void host_use(const Range& range, bool write, const Site& site);
    void deferred_use(const Deferred& point, const Range& range, Use use, const Site& site);

    // Memory goes away under the program's address range [range + delta); everything that uses it
    // through that range must have been waited for. implicit: the call itself waits (cuMemFree).
    void released(const Range& range, bool implicit, const Site& site);
    // The bytes are gone: what was known of them is forgotten.
    void forget(const Range& range);

    // Sub-allocation, told by a pool.
    void block_allocated(Actor& actor, const Range& range, const Site& site);
    void block_freed(Actor& actor, const Range& range, const Site& site);
    // Freed by its user; the pool waits for uses on other streams before it calls block_freed.
    void block_held(const Actor& actor, const Range& range, const Site& site);
    // In use again, and nothing is known of the order: given to a graph that is being captured.
    void block_taken(const Range& range) { cut_freed(range); }
    bool is_freed(std::uint64_t at) const;

    // Stream-ordered memory: the driver itself orders what it hands out after what it took back, so
    // nothing of the former use is kept but that the bytes are free.
    void pool_block_freed(Actor& actor, const Range& range, const Site& site);
    void pool_block_freed_by_host(const Range& range, const Site& site);

    // The actor waits at one call site for what nobody does; the host at another, for the actor.
    void deadlock(const Actor& actor, const Site& waits, const Site& site);

    ReportList reports;

  private:
    struct Segment {
        std::uint64_t end = 0;
        Mark write;
        std::vector<Mark> others;  // reads and atomic accesses
    };
    struct Freed {
        std::uint64_t end = 0;
        Mark mark;
        bool held = false;  // by the pool, which has not called block_freed yet
    };
    using History = std::map<std::uint64_t, Segment>;

    bool host_knows(const Mark& mark) const { return host_.at(mark.component) >= mark.time; }
    void judge(const Segment& segment, std::uint64_t begin, std::uint64_t end, const Clock& clock,
               const Mark& mark, bool& idle);
    void report_pair(const Mark& first, const Mark& second, std::uint64_t begin, std::uint64_t end);
    // Calls visit(mark, begin, end) for each access known of the range.
    template <class Visit>
    void each_mark(const Range& range, Visit visit) const;
    // visit(segment) for each of the range, in order; segments fill the gaps.
    template <class Visit>
    void each_segment(const Range& range, Visit visit);
    // What was freed of the range is freed no more.
    void cut_freed(const Range& range);
    // before: of an access that is told late, its point.
    void check_freed(const Range& range, const Mark& mark, const Deferred* before = nullptr);
    void split(std::uint64_t at);
    void store(Segment& segment, const Mark& mark);
    void store_deferred(Segment& segment, const Mark& mark, const Deferred& point);
    void note_followers(const Actor& actor);
    // Of points that nobody holds any more.
    void drop_told();
    void prune();

    Clock host_;
    std::uint64_t host_version_ = 1;
    Clock implicit_;
    std::vector<std::uint64_t> last_time_;                     // by component: its latest time
    std::vector<std::pair<Component, std::uint64_t>> closed_;  // components to use again
    History history_;
    std::map<std::uint64_t, Freed> freed_;
    std::vector<std::weak_ptr<Deferred>> deferred_;
    std::size_t prune_at_ = 1024;
};

}  // namespace vramkit::sim
