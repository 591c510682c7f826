// The checker: which accesses to memory are ordered by what CUDA documents, and which are not.
//
// It knows nothing of time. Every access is judged when it is issued, against all unordered earlier
// ones, so a race is reported whatever the timing happened to be.
//
// Invariants of the history:
//   segments never overlap; each has at most one write and at most one read a component;
//   a mark at (component c, time t) may be dropped once host.at(c) >= t: everything issued later
//   is ordered after it, because every operation starts from the host's clock.
// So the history is bounded by the segments touched since the last synchronisation, times streams.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/checker/clock.h"

namespace vramkit::sim {

enum class Use : std::uint8_t { read, write, alloc, free };

// Where in the program an access was issued.
struct Site {
    std::uint16_t call = 0;       // index into the manifest's calls
    std::uint32_t call_site = 0;  // index into CallSites: return address, and stack where asked for
    std::uint32_t thread = 0;     // label of the issuing thread
};

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

// One access that later ones are compared with.
struct Mark {
    Component component = 0;
    std::uint64_t time = 0;  // 0: no mark
    std::uint64_t stream = 0;
    std::uint64_t delta = 0;
    Site site;
    Use use = Use::read;
    bool host = false;
};

enum class ReportKind : std::uint8_t { race, free_in_use, use_after_free, implicit_wait, deadlock };

struct Report {
    ReportKind kind = ReportKind::race;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Mark first;
    Mark second;
    std::uint64_t count = 1;  // how often the same pair of sites was seen
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

    // The host has waited for this, by a call that documents it.
    void host_waited(const Clock& clock);
    // A call waited that does not document it (cuMemFree): relying on that is a finding of its own.
    void host_waited_implicitly(const Clock& clock) { implicit_.join(clock); }

    // The actor's operation uses these bytes. True: nothing unordered with the host uses them now.
    bool use(const Actor& actor, const Range& range, Use use, const Site& site);
    void host_use(const Range& range, bool write, const Site& site);

    // Memory goes away under the program's address range [range + delta); everything that uses it
    // through that range must have been waited for. implicit: the call itself waits (cuMemFree).
    void released(const Range& range, bool implicit, const Site& site);
    // The bytes are gone: what was known of them is forgotten.
    void forget(const Range& range);

    // Sub-allocation, told by a pool.
    void block_allocated(Actor& actor, const Range& range, const Site& site);
    void block_freed(Actor& actor, const Range& range, const Site& site);
    // Given to a graph that is being captured: free no more.
    void block_captured(const Range& range) { cut_freed(range); }

    // Stream-ordered memory: the driver itself orders what it hands out after what it took back, so
    // nothing of the former use is kept but that the bytes are free.
    void pool_block_freed(Actor& actor, const Range& range, const Site& site);
    void pool_block_freed_by_host(const Range& range, const Site& site);

    // The actor waits at one call site for what nobody does; the host at another, for the actor.
    void deadlock(const Actor& actor, const Site& waits, const Site& site);

    const std::vector<Report>& reports() const { return reports_; }
    void clear_reports() { reports_.clear(); }

  private:
    struct Segment {
        std::uint64_t end = 0;
        Mark write;
        std::vector<Mark> reads;
    };
    struct Freed {
        std::uint64_t end = 0;
        Mark mark;
    };
    using History = std::map<std::uint64_t, Segment>;

    bool host_knows(const Mark& mark) const { return host_.at(mark.component) >= mark.time; }
    void judge(const Segment& segment, std::uint64_t begin, std::uint64_t end, const Clock& clock,
               const Mark& mark, bool& idle);
    void report_pair(const Mark& first, const Mark& second, std::uint64_t begin, std::uint64_t end);
    void add_report(ReportKind kind, const Mark& first, const Mark& second, std::uint64_t address,
                    std::uint64_t bytes);
    // Calls visit(mark, begin, end) for each access known of the range.
    template <class Visit>
    void each_mark(const Range& range, Visit visit) const;
    // What was freed of the range is freed no more.
    void cut_freed(const Range& range);
    void check_freed(const Range& range, const Mark& mark);
    void split(std::uint64_t at);
    void store(Segment& segment, const Mark& mark);
    void prune();

    Clock host_;
    std::uint64_t host_version_ = 1;
    Clock implicit_;
    std::vector<std::uint64_t> last_time_;                     // by component: its latest time
    std::vector<std::pair<Component, std::uint64_t>> closed_;  // components to use again
    History history_;
    std::map<std::uint64_t, Freed> freed_;
    std::size_t prune_at_ = 1024;
    std::vector<Report> reports_;
};

}  // namespace vramkit::sim
