// Groups whose addresses change: within the ring, into it, and out of it.
#include <algorithm>
#include <optional>

#include "base/rules.h"
#include "base/scopes.h"
#include "weights/streamer.h"

namespace vramkit::weights {
namespace {

// The first byte of a group that another one shares; nothing: they share none. Both begin in the
// first mapping of the ring.
std::optional<std::uint64_t> first_shared(const Ring& ring, const GroupSource& group,
                                          const GroupSource& other) {
    const auto distance = (other.address + ring.bytes - group.address) % ring.bytes;
    if (distance == 0 || ring.bytes - distance < other.bytes) return 0;
    if (distance < group.bytes) return distance;
    return {};
}

bool in_ring(const Ring& ring, const GroupSource& group) {
    return group.address - ring.address < ring.bytes;
}

}  // namespace

bool Streamer::fits(const GroupSource& group, Failure& why) const {
    if (!in_ring(ring_, group) || group.bytes <= ring_.bytes) return true;
    why = Failure::bad_value("group " + group.name + " is larger than the ring");
    return false;
}

void Streamer::find_overlaps() {
    for (GroupIndex one = 0; one < groups_.size(); ++one) {
        Group& group = groups_[one];
        group.overlaps.clear();
        if (!in_ring(ring_, group)) {
            group.overlaps.push_back({one, 0});
            continue;
        }
        for (GroupIndex other = 0; other < groups_.size(); ++other) {
            if (!in_ring(ring_, groups_[other])) continue;
            if (const auto from = first_shared(ring_, group, groups_[other])) {
                group.overlaps.push_back({other, *from});
            }
        }
        std::ranges::sort(group.overlaps, {}, &Overlap::from);
    }
}

bool Streamer::move(const Moves& moves, CUstream behind, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    for (const auto& [index, address] : moves) {
        const Group& group = groups_[index];
        GroupSource moved;
        moved.name = group.name, moved.address = address, moved.bytes = group.bytes;
        if (!fits(moved, why)) return false;
        if (group.has_address && (group.entered > 0 || group.pinned)) {
            why = Failure::bad_value("group " + group.name +
                                     (group.pinned ? " is pinned" : " is in use") +
                                     ": release it before it is moved");
            return false;
        }
    }
    // From here on no copy looks at the old address any more: all writers come behind it now.
    for (Writer writer = 0; writer < kWriters; ++writer) {
        if (streams_[writer] == nullptr || is_broken(Rule::copy_waits_for_work_before_a_move)) {
            continue;
        }
        for (const auto& [index, address] : moves) {
            if (!come_behind(groups_[index], writer, why)) return false;
        }
    }
    if (behind != nullptr && !is_broken(Rule::copy_waits_for_new_memory)) {
        if (moved_ == nullptr &&
            failed(call_.cuEventCreate(&moved_, CU_EVENT_DISABLE_TIMING), "cuEventCreate", why)) {
            return false;
        }
        if (failed(call_.cuEventRecord(moved_, behind), "cuEventRecord", why)) return false;
        for (Writer writer = 0; writer < kWriters; ++writer) {
            if (streams_[writer] != nullptr && !waits(writer, moved_, why)) return false;
        }
    }
    for (const auto& [index, address] : moves) {
        Group& group = groups_[index];
        group.address = address;
        group.has_address = true;
        group.valid = false;
    }
    find_overlaps();
    return true;
}

bool Streamer::vacate(GroupIndex index, CUstream stream, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    Group& group = groups_[index];
    if (group.entered > 0 || group.pinned || !group.has_address) {
        why = Failure::bad_value("group " + group.name + " is in use, pinned, or has no memory");
        return false;
    }
    if (!let_wait(group, stream, why)) return false;
    group.has_address = false;
    group.valid = false;
    return true;
}

bool Streamer::order_behind(GroupIndex index, CUstream stream, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    return let_wait(groups_[index], stream, why);
}

bool Streamer::has_address(GroupIndex group) const {
    const std::lock_guard guard(lock_);
    return groups_[group].has_address;
}

std::uint64_t Streamer::last_use(GroupIndex group) const {
    const std::lock_guard guard(lock_);
    return groups_[group].last_use;
}

// For work since the last copy, which waited for the copy; and for the copy, which nobody may have
// used, and which came behind all before it.
bool Streamer::let_wait(const Group& group, CUstream stream, Failure& why) {
    if (is_broken(Rule::memory_is_given_up_behind_its_work)) return true;
    for (const Use& use : group.uses) {
        if (use.since_copy &&
            failed(call_.cuStreamWaitEvent(stream, use.event, 0), "cuStreamWaitEvent", why)) {
            return false;
        }
    }
    return !failed(call_.cuStreamWaitEvent(stream, group.ready, 0), "cuStreamWaitEvent", why);
}

bool Streamer::requires_address(const Group& group, Failure& why) const {
    if (group.has_address) return true;
    why = Failure::bad_value("the memory of group " + group.name +
                             " was taken away: move it to other memory first");
    return false;
}

}  // namespace vramkit::weights
