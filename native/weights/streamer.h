// Brings groups of weights to the card in stream order, ahead of their use.
//
// 1. A group has one address, which changes only by move(). Groups of the ring share addresses: a
//    copy of one overwrites those that overlap it.
// 2. A stream that enters a group waits for its copy on the GPU. Each chunk of a copy waits on the
//    GPU for the work that used what it overwrites. The host waits for nothing.
// 3. Two streams copy: one follows the schedule, the other serves what is needed at once, and gets
//    its turn between two chunks of the first. Staged groups are copied to a staging slot chunk by
//    chunk, and expanded from there to their place (expander.h) by a second stream of each.
// 4. A group between enter() and leave(), or pinned, is not overwritten. A prefetch that would do
//    so is left out; what is then missing at enter() is copied there.
// 5. A prefetch that fails is tried again when its group is entered, and that reports the failure.
// 6. In a pass that goes as scheduled, all driver calls are copies, events and waits for events:
//    streams and events were made before.
// 7. A group whose memory was taken away has no address until it is moved to another one: whatever
//    needs it fails meanwhile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "base/stream_ref.h"
#include "driver/driver.h"
#include "weights/copy_timer.h"
#include "weights/expander.h"
#include "weights/schedule.h"
#include "weights/schedule_position.h"

namespace vramkit::weights {

// Memory that is mapped twice, one mapping behind the other: a group that reaches beyond the end of
// the ring has contiguous addresses all the same.
struct Ring {
    CUdeviceptr address = 0;
    std::uint64_t bytes = 0;  // of memory; twice as many addresses
};

struct GroupSource {
    std::string name;  // for messages
    CUdeviceptr address = 0;
    const std::byte* source = nullptr;  // pinned
    std::uint64_t bytes = 0;
    std::vector<Chunk> chunks;  // of a staged group, in order; none: it is copied as it is
};

// What brings staged groups to their place: memory for kSlots chunks of each copy stream, and what
// expands them.
struct Staging {
    static constexpr std::size_t kSlots = 2;
    CUdeviceptr address = 0;
    std::uint64_t slot_bytes = 0;
    std::shared_ptr<Expander> expander;  // null if no group is staged
};

struct Counters {
    std::uint64_t copies = 0;  // of groups
    std::uint64_t copied_bytes = 0;
    std::uint64_t misses = 0;     // groups that were not on their way when they were needed
    std::uint64_t off_order = 0;  // groups entered out of the order of the schedule
    std::uint64_t left_out = 0;   // prefetches that would have overwritten a group in use or pinned
    std::uint64_t failed = 0;     // prefetches that the driver refused
};

struct Copied {
    GroupIndex group = 0;
    bool urgent = false;
};

// A copy of a group, in seconds from an event on.
struct CopyTime {
    GroupIndex group = 0;
    double began = 0, ended = 0;
};

class Streamer {
  public:
    // The context is the device's primary one. Null and the reason on failure.
    static std::unique_ptr<Streamer> open(std::shared_ptr<Driver> driver, CUcontext context,
                                          const Ring& ring, std::vector<GroupSource> groups,
                                          std::uint64_t chunk_bytes, Staging staging, Failure& why);
    // Waits for the copies, since they read host memory of the caller.
    ~Streamer();
    Streamer(const Streamer&) = delete;
    Streamer& operator=(const Streamer&) = delete;

    std::size_t size() const { return groups_.size(); }

    // The number of a schedule that can be followed. Its indices must be those of groups.
    std::uint32_t add(Schedule schedule);
    void replace(std::uint32_t number, Schedule schedule);
    // What comes is step 0 of this schedule.
    void follow(std::uint32_t number);

    // Work issued to the stream from now on may use the group, until leave(). `on_its_way`: it was
    // on the card or being copied. Several streams may use it at once; each enters and leaves.
    bool enter(GroupIndex group, const StreamRef& stream, bool& on_its_way, Failure& why);
    // The work that uses the group has been issued to the stream.
    bool leave(GroupIndex group, const StreamRef& stream, Failure& why);

    // Copies the group unless it is on its way; urgent: before what the schedule asked for.
    bool prefetch(GroupIndex group, bool urgent, Failure& why);
    // The event behind the group's copy, for a wait on the host.
    CUevent ready(GroupIndex group, Failure& why);
    bool on_its_way(GroupIndex group) const;
    void pin(GroupIndex group, bool pinned);
    // Its bytes may be overwritten; the next use copies it again. False: it is in use or pinned.
    bool evict(GroupIndex group, Failure& why);

    // moves.cpp: groups whose addresses change.
    using Moves = std::vector<std::pair<GroupIndex, CUdeviceptr>>;
    // To other addresses, of the ring or of memory of their own; the next use copies them again.
    // Copies come behind the work at the old addresses and, if given, behind what `behind` has been
    // issued so far. False: a group is in use or pinned where it is, or the driver failed, and none
    // is moved.
    bool move(const Moves& moves, CUstream behind, Failure& why);
    // Takes its memory away from a group: work that is issued to the stream from now on comes
    // behind all work on that memory. False: it is in use or pinned, or has none.
    bool vacate(GroupIndex group, CUstream stream, Failure& why);
    // The same order, and the group keeps its memory.
    bool order_behind(GroupIndex group, CUstream stream, Failure& why);
    bool has_address(GroupIndex group) const;
    // A number that grows with each leave(); 0: it was never used.
    std::uint64_t last_use(GroupIndex group) const;

    // Waits on the host for all copies, and for the work that was issued before each leave().
    bool synchronize(Failure& why);
    Counters counters() const;
    // Keeps the order in which groups are copied, and returns what was kept so far.
    std::vector<Copied> log_copies(bool on);
    // From now on two events are recorded around each copy, for copy_times().
    bool time_copies(Failure& why);
    // The last two copies of each group: one may be for a pass that has not begun. Waits on the
    // host for copies under way.
    bool copy_times(CUevent since, std::vector<CopyTime>& times, Failure& why);
    // The ids of the streams that copy: the one that follows the schedule, and the urgent one.
    const std::array<std::uint64_t, 2>& stream_ids() const { return stream_ids_; }
    // After a reset of the simulated GPU: the driver no longer knows the streams and events.
    void forget();

  private:
    enum CopyStream : std::uint8_t { scheduled, urgent };
    // A stream that writes places of groups: one that copies, or the one that expands behind it.
    using Writer = std::uint8_t;
    static constexpr std::size_t kWriters = 4;
    static Writer expander_of(CopyStream stream) { return static_cast<Writer>(stream + 2); }
    using InOrder = std::array<bool, kWriters>;

    // Work that used a group: an event behind it, on one stream.
    struct Use {
        std::uint64_t stream = 0;
        CUevent event = nullptr;
        bool since_copy = false;
    };
    // A group whose bytes another one shares, from this byte of that one on.
    struct Overlap {
        GroupIndex group = 0;
        std::uint64_t from = 0;
    };
    struct Group : GroupSource {
        std::vector<Overlap> overlaps;  // itself among them, in the order of their bytes
        CUevent ready = nullptr;        // behind its last copy
        std::vector<Use> uses;
        CopyTimer timer;
        bool valid = false;  // copied, or being copied, and not overwritten since
        bool pinned = false;
        bool has_address = true;
        std::uint32_t entered = 0;
        std::uint64_t last_use = 0;
        Writer written_by = scheduled;
        // Writers that come behind everything that was done with it so far.
        InOrder in_order{true, true, true, true};
        std::uint64_t listed = 0;  // the last list that named it
    };

    // Where a chunk is between its copy and its expansion.
    struct Slot {
        CUdeviceptr address = 0;
        CUevent full = nullptr, free = nullptr;
        bool used = false;
    };

    Streamer(std::shared_ptr<Driver> driver, CUcontext context, std::uint64_t chunk_bytes,
             Staging staging);
    bool make(const Ring& ring, std::vector<GroupSource> groups, Failure& why);
    bool make_streams(bool staged, Failure& why);
    bool make_slots(Failure& why);
    bool fits(const GroupSource& group, Failure& why) const;
    void find_overlaps();
    // With the lock, in the context.
    bool let_wait(const Group& group, CUstream stream, Failure& why);
    bool requires_address(const Group& group, Failure& why) const;
    bool come_behind(Group& group, Writer writer, Failure& why);
    // ... behind all that is in the bytes of the group before this one; continues at `overlap`.
    bool come_behind_up_to(const Group& group, std::uint64_t end, std::size_t& overlap,
                           Writer writer, Failure& why);
    bool copy(GroupIndex index, CopyStream stream, Failure& why);
    bool copy_in_order(GroupIndex index, CopyStream stream, Failure& why);
    bool copy_plain(Group& group, CopyStream stream, Failure& why);
    bool copy_staged(Group& group, CopyStream stream, Failure& why);
    bool expand(const Group& group, const Chunk& chunk, CopyStream stream, Failure& why);
    bool waits(Writer stream, CUevent event, Failure& why);
    bool records(CUevent event, Writer stream, Failure& why);
    bool copies(CUdeviceptr to, const std::byte* from, std::uint64_t bytes, Writer stream,
                Failure& why);
    // A group that must stay where this one would go; null: none.
    const Group* in_the_way(const Group& group) const;
    bool fetch(GroupIndex index, CopyStream stream, Failure& why);
    void issue(const Schedule::List& list);

    const std::shared_ptr<Driver> driver_;
    const DriverTable& call_;
    const CUcontext context_;
    const std::uint64_t chunk_bytes_;
    const Staging staging_;
    mutable std::mutex lock_;
    std::array<CUstream, kWriters> streams_{};  // those that expand: null without staged groups
    std::array<std::array<Slot, Staging::kSlots>, 2> slots_{};  // by copy stream
    std::array<std::size_t, 2> next_slot_{};
    std::array<std::uint64_t, 2> stream_ids_{};
    Ring ring_;
    std::vector<Group> groups_;
    CUevent moved_ = nullptr;  // made by the first move that needs it
    SchedulePosition position_;
    std::uint64_t lists_ = 0;  // issued so far
    std::uint64_t uses_ = 0;   // that have ended
    Counters counters_;        // but for off_order, which the position knows
    bool logs_copies_ = false;
    std::vector<Copied> copied_;
    bool forgotten_ = false;
};

}  // namespace vramkit::weights
