// Copies behind what they overwrite, streams behind the copies they use.
#include "weights/streamer.h"

#include <algorithm>
#include <utility>

#include "base/rules.h"
#include "base/scopes.h"

namespace vramkit::weights {

Streamer::Streamer(std::shared_ptr<Driver> driver, CUcontext context, std::uint64_t chunk_bytes,
                   Staging staging)
    : driver_(std::move(driver)),
      call_(driver_->call()),
      context_(context),
      chunk_bytes_(chunk_bytes),
      staging_(std::move(staging)) {}

std::unique_ptr<Streamer> Streamer::open(std::shared_ptr<Driver> driver, CUcontext context,
                                         const Ring& ring, std::vector<GroupSource> groups,
                                         std::uint64_t chunk_bytes, Staging staging, Failure& why) {
    std::unique_ptr<Streamer> made(
        new Streamer(std::move(driver), context, chunk_bytes, std::move(staging)));
    if (!made->make(ring, std::move(groups), why)) return nullptr;
    return made;
}

bool Streamer::make(const Ring& ring, std::vector<GroupSource> groups, Failure& why) {
    const SlowPathScope scope(call_, context_);
    const bool staged =
        std::ranges::any_of(groups, [](const GroupSource& group) { return !group.chunks.empty(); });
    if (!make_streams(staged, why) || (staged && !make_slots(why))) return false;
    ring_ = ring;
    groups_.reserve(groups.size());
    for (GroupSource& source : groups) {
        if (!fits(source, why)) return false;
        Group& group = groups_.emplace_back();
        static_cast<GroupSource&>(group) = std::move(source);
        if (failed(call_.cuEventCreate(&group.ready, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                   why)) {
            return false;
        }
    }
    find_overlaps();
    return true;
}

bool Streamer::make_streams(bool staged, Failure& why) {
    for (std::size_t each = 0; each < (staged ? kWriters : 2); ++each) {
        if (failed(call_.cuStreamCreateWithPriority(&streams_[each], CU_STREAM_NON_BLOCKING, 0),
                   "cuStreamCreateWithPriority", why)) {
            return false;
        }
    }
    for (std::size_t each = 0; each < stream_ids_.size(); ++each) {
        unsigned long long id = 0;
        if (failed(call_.cuStreamGetId(streams_[each], &id), "cuStreamGetId", why)) return false;
        stream_ids_[each] = id;
    }
    return true;
}

bool Streamer::make_slots(Failure& why) {
    CUdeviceptr address = staging_.address;
    for (auto& slots : slots_) {
        for (Slot& slot : slots) {
            slot.address = std::exchange(address, address + staging_.slot_bytes);
            for (CUevent* event : {&slot.full, &slot.free}) {
                if (failed(call_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                           why)) {
                    return false;
                }
            }
        }
    }
    return true;
}

Streamer::~Streamer() {
    if (forgotten_) return;
    const SlowPathScope scope(call_, context_);
    for (const CUstream stream : streams_) {
        if (stream == nullptr) continue;
        call_.cuStreamSynchronize(stream);
        call_.cuStreamDestroy_v2(stream);
    }
    for (const auto& slots : slots_) {
        for (const Slot& slot : slots) {
            if (slot.full != nullptr) call_.cuEventDestroy_v2(slot.full);
            if (slot.free != nullptr) call_.cuEventDestroy_v2(slot.free);
        }
    }
    if (moved_ != nullptr) call_.cuEventDestroy_v2(moved_);
    for (Group& group : groups_) {
        if (group.ready != nullptr) call_.cuEventDestroy_v2(group.ready);
        group.timer.destroy(call_);
        for (const Use& use : group.uses) call_.cuEventDestroy_v2(use.event);
    }
}

std::uint32_t Streamer::add(Schedule schedule) {
    const std::lock_guard guard(lock_);
    return position_.add(std::move(schedule));
}

void Streamer::replace(std::uint32_t number, Schedule schedule) {
    const std::lock_guard guard(lock_);
    position_.replace(number, std::move(schedule));
}

void Streamer::follow(std::uint32_t number) {
    const std::lock_guard guard(lock_);
    position_.follow(number);
}

bool Streamer::enter(GroupIndex index, const StreamRef& stream, bool& on_its_way, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    Group& group = groups_[index];
    if (!requires_address(group, why)) return false;
    on_its_way = group.valid;
    if (!group.valid) {
        ++counters_.misses;
        if (!fetch(index, urgent, why)) return false;
    }
    if (!is_broken(Rule::reader_waits_for_copy) &&
        failed(call_.cuStreamWaitEvent(stream.handle, group.ready, 0), "cuStreamWaitEvent", why)) {
        return false;
    }
    // Entered once more while it is in use, it is still the same step. Not before this point: a
    // step that failed is tried again.
    if (group.entered++ > 0 || !position_.advance_to(index)) return true;
    if (!on_its_way) issue(position_.due());
    issue(position_.before());
    return true;
}

bool Streamer::leave(GroupIndex index, const StreamRef& stream, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    Group& group = groups_[index];
    if (group.entered == 0) {
        why = Failure::bad_value("group " + group.name + " was not entered");
        return false;
    }
    const auto same = [&](const Use& each) { return each.since_copy && each.stream == stream.id; };
    // The event of an earlier use serves again, so that streams that come and go leave none behind.
    const auto over = [&](const Use& each) {
        return !each.since_copy || call_.cuEventQuery(each.event) == CUDA_SUCCESS;
    };
    auto use = std::ranges::find_if(group.uses, same);
    if (use == group.uses.end()) use = std::ranges::find_if(group.uses, over);
    if (use == group.uses.end()) {
        Use made;
        if (failed(call_.cuEventCreate(&made.event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                   why)) {
            return false;
        }
        use = group.uses.insert(use, made);
    }
    if (failed(call_.cuEventRecord(use->event, stream.handle), "cuEventRecord", why)) return false;
    use->stream = stream.id;
    use->since_copy = true;
    group.in_order = {};
    group.last_use = ++uses_;
    --group.entered;
    if (const Schedule::List* after = position_.after()) issue(*after);
    return true;
}

bool Streamer::prefetch(GroupIndex index, bool at_once, Failure& why) {
    const std::lock_guard guard(lock_);
    if (groups_[index].valid) return true;
    const SlowPathScope scope(call_, context_);
    return fetch(index, at_once ? urgent : scheduled, why);
}

CUevent Streamer::ready(GroupIndex index, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    Group& group = groups_[index];
    if (!requires_address(group, why)) return nullptr;
    if (!group.valid) {
        ++counters_.misses;
        if (!fetch(index, urgent, why)) return nullptr;
    }
    return group.ready;
}

bool Streamer::on_its_way(GroupIndex group) const {
    const std::lock_guard guard(lock_);
    return groups_[group].valid;
}

void Streamer::pin(GroupIndex group, bool pinned) {
    const std::lock_guard guard(lock_);
    groups_[group].pinned = pinned;
}

bool Streamer::evict(GroupIndex index, Failure& why) {
    const std::lock_guard guard(lock_);
    Group& group = groups_[index];
    if (group.entered > 0 || group.pinned) {
        why = Failure::bad_value("group " + group.name +
                                 (group.pinned ? " is pinned" : " is in use") +
                                 ": release it before it is evicted");
        return false;
    }
    group.valid = false;
    return true;
}

bool Streamer::synchronize(Failure& why) {
    std::vector<CUevent> events;
    {
        const std::lock_guard guard(lock_);
        for (const Group& group : groups_) {
            for (const Use& use : group.uses) events.push_back(use.event);
        }
    }
    const SlowPathScope scope(call_, context_);
    for (const CUstream stream : streams_) {
        if (stream != nullptr &&
            failed(call_.cuStreamSynchronize(stream), "cuStreamSynchronize", why)) {
            return false;
        }
    }
    for (const CUevent event : events) {
        if (failed(call_.cuEventSynchronize(event), "cuEventSynchronize", why)) return false;
    }
    return true;
}

Counters Streamer::counters() const {
    const std::lock_guard guard(lock_);
    Counters now = counters_;
    now.off_order = position_.off_order();
    return now;
}

std::vector<Copied> Streamer::log_copies(bool on) {
    const std::lock_guard guard(lock_);
    logs_copies_ = on;
    return std::exchange(copied_, {});
}

bool Streamer::time_copies(Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    return std::ranges::all_of(groups_, [&](Group& group) { return group.timer.make(call_, why); });
}

bool Streamer::copy_times(CUevent since, std::vector<CopyTime>& times, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    for (GroupIndex index = 0; index < groups_.size(); ++index) {
        std::vector<std::pair<double, double>> found;
        if (!groups_[index].timer.times(call_, since, found, why)) return false;
        for (const auto& [began, ended] : found) times.push_back({index, began, ended});
    }
    return true;
}

void Streamer::forget() {
    const std::lock_guard guard(lock_);
    forgotten_ = true;
}

bool Streamer::waits(Writer stream, CUevent event, Failure& why) {
    return !failed(call_.cuStreamWaitEvent(streams_[stream], event, 0), "cuStreamWaitEvent", why);
}

bool Streamer::records(CUevent event, Writer stream, Failure& why) {
    return !failed(call_.cuEventRecord(event, streams_[stream]), "cuEventRecord", why);
}

bool Streamer::copies(CUdeviceptr to, const std::byte* from, std::uint64_t bytes, Writer stream,
                      Failure& why) {
    return !failed(call_.cuMemcpyHtoDAsync_v2(to, from, bytes, streams_[stream]),
                   "cuMemcpyHtoDAsync", why);
}

// The writer comes behind the work that used the group since its copy, which waited for the copy;
// if there is none, behind the copy.
bool Streamer::come_behind(Group& group, Writer writer, Failure& why) {
    if (group.in_order[writer]) return true;
    bool used = false;
    for (Use& use : group.uses) {
        if (!use.since_copy) continue;
        used = true;
        if (is_broken(Rule::copy_waits_for_readers)) continue;
        if (!waits(writer, use.event, why)) return false;
    }
    if (!used && group.written_by != writer && !is_broken(Rule::copy_waits_for_other_copy) &&
        !waits(writer, group.ready, why)) {
        return false;
    }
    group.in_order[writer] = true;
    return true;
}

bool Streamer::come_behind_up_to(const Group& group, std::uint64_t end, std::size_t& overlap,
                                 Writer writer, Failure& why) {
    for (; overlap < group.overlaps.size() && group.overlaps[overlap].from < end; ++overlap) {
        Group& other = groups_[group.overlaps[overlap].group];
        if (&other != &group && !come_behind(other, writer, why)) return false;
    }
    return true;
}

bool Streamer::copy(GroupIndex index, CopyStream stream, Failure& why) {
    if (copy_in_order(index, stream, why)) return true;
    const Group& group = groups_[index];
    if (!group.chunks.empty()) staging_.expander->give_up(group.name, why);
    return false;
}

bool Streamer::copy_in_order(GroupIndex index, CopyStream stream, Failure& why) {
    Group& group = groups_[index];
    const bool staged = !group.chunks.empty();
    const Writer writer = staged ? expander_of(stream) : static_cast<Writer>(stream);
    // Behind its own uses first: they are forgotten with the copy.
    if (!come_behind(group, writer, why)) return false;
    for (const Overlap& each : group.overlaps) groups_[each.group].valid = false;
    for (Use& use : group.uses) use.since_copy = false;
    group.written_by = writer;
    group.in_order = {};
    group.in_order[writer] = true;
    const bool copied = staged ? copy_staged(group, stream, why) : copy_plain(group, stream, why);
    // Also behind a copy that failed: what was issued of it must be over before the next one.
    Failure second;
    if (!records(group.ready, writer, copied ? why : second)) {
        // Without an event only the host can wait for it.
        call_.cuStreamSynchronize(streams_[writer]);
        group.in_order = {true, true, true, true};
        return false;
    }
    group.timer.ends(call_, streams_[writer]);
    if (!copied) return false;
    group.valid = true;
    ++counters_.copies;
    if (logs_copies_) copied_.push_back({index, stream == urgent});
    return true;
}

bool Streamer::copy_plain(Group& group, CopyStream stream, Failure& why) {
    std::size_t overlap = 0;
    for (std::uint64_t done = 0; done < group.bytes; done += chunk_bytes_) {
        const std::uint64_t bytes = std::min(chunk_bytes_, group.bytes - done);
        if (!come_behind_up_to(group, done + bytes, overlap, stream, why)) return false;
        if (done == 0) group.timer.begins(call_, streams_[stream]);
        if (!copies(group.address + done, group.source + done, bytes, stream, why)) {
            return false;
        }
        counters_.copied_bytes += bytes;
    }
    return true;
}

// The copy of a chunk waits for its slot, and the expansion for the place. A chunk that is not
// staged goes straight to its place, in the stream that expands: a group has one writer.
bool Streamer::copy_staged(Group& group, CopyStream stream, Failure& why) {
    const Writer expander = expander_of(stream);
    std::size_t overlap = 0;
    group.timer.begins(call_, streams_[stream]);
    for (const Chunk& chunk : group.chunks) {
        if (!come_behind_up_to(group, chunk.first_byte + chunk.bytes, overlap, expander, why)) {
            return false;
        }
        const bool done = chunk.staged
                              ? expand(group, chunk, stream, why)
                              : copies(group.address + chunk.first_byte,
                                       group.source + chunk.offset, chunk.bytes, expander, why);
        if (!done) return false;
        counters_.copied_bytes += chunk.stored;
    }
    return true;
}

bool Streamer::expand(const Group& group, const Chunk& chunk, CopyStream stream, Failure& why) {
    const Writer expander = expander_of(stream);
    std::size_t& next = next_slot_[stream];
    Slot& slot = slots_[stream][next];
    next = (next + 1) % Staging::kSlots;
    if (slot.used && !is_broken(Rule::copy_waits_for_expansion) && !waits(stream, slot.free, why)) {
        return false;
    }
    if (!copies(slot.address, group.source + chunk.offset, chunk.stored, stream, why) ||
        !records(slot.full, stream, why) ||
        (!is_broken(Rule::expansion_waits_for_copy) && !waits(expander, slot.full, why))) {
        return false;
    }
    const bool expanded = staging_.expander->expand(
        {group.name, chunk, slot.address, group.address + chunk.first_byte, streams_[expander]},
        why);
    // Also if it failed: what was issued of it reads the slot.
    slot.used = true;
    Failure second;
    if (!records(slot.free, expander, expanded ? why : second)) {
        call_.cuStreamSynchronize(streams_[expander]);
        return false;
    }
    return expanded;
}

const Streamer::Group* Streamer::in_the_way(const Group& group) const {
    for (const Overlap& overlap : group.overlaps) {
        const Group& each = groups_[overlap.group];
        if (&each != &group && each.valid && (each.entered > 0 || each.pinned)) return &each;
    }
    return nullptr;
}

bool Streamer::fetch(GroupIndex index, CopyStream stream, Failure& why) {
    if (!requires_address(groups_[index], why)) return false;
    if (const Group* other = in_the_way(groups_[index]); other != nullptr) {
        why = Failure::bad_value(
            "group " + groups_[index].name + " needs memory that " +
            (other->entered > 0 ? "is in use by group " : "the pinned group ") + other->name +
            (other->entered > 0 ? ": release that first, or make the ring larger"
                                : " holds: release that first, or make the ring larger"));
        return false;
    }
    if (!copy(index, stream, why)) return false;
    // It has the link to itself, but for what was issued before.
    return stream == scheduled ||
           !failed(call_.cuStreamWaitEvent(streams_[scheduled], groups_[index].ready, 0),
                   "cuStreamWaitEvent", why);
}

// What is needed sooner is not overwritten by what is needed later.
void Streamer::issue(const Schedule::List& list) {
    ++lists_;
    for (const GroupIndex index : list) {
        Group& group = groups_[index];
        group.listed = lists_;
        if (group.valid || !group.has_address) continue;
        const bool sooner =
            std::any_of(group.overlaps.begin(), group.overlaps.end(), [&](const Overlap& each) {
                const Group& other = groups_[each.group];
                return &other != &group && other.valid && other.listed == lists_;
            });
        if (sooner || in_the_way(group) != nullptr) {
            ++counters_.left_out;
            continue;
        }
        Failure why;
        if (!copy(index, scheduled, why)) {
            ++counters_.failed;
            return;
        }
    }
}

}  // namespace vramkit::weights
