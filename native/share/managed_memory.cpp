#include "share/managed_memory.h"

#include <algorithm>

#include "base/host_memory.h"
#include "base/rules.h"
#include "base/scopes.h"
#include "base/sizes.h"
#include "share/log.h"

namespace vramkit::share {
namespace {

constexpr std::uint64_t kStep = std::uint64_t{64} << 20;
constexpr std::uint64_t kCounted = std::uint64_t{64} << 10;  // the least a card keeps of a page

// Where both forms of the call are, they mean the same.
CUresult prefetch_to(const DriverTable& call, CUdeviceptr address, std::size_t bytes, CUdevice to,
                     CUstream stream) {
    if (call.cuMemPrefetchAsync_v2 == nullptr) {
        return call.cuMemPrefetchAsync(address, bytes, to, stream);
    }
    const CUmemLocation location = to == VRAMKIT_DEVICE_CPU
                                       ? CUmemLocation{CU_MEM_LOCATION_TYPE_HOST, 0}
                                       : CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, to};
    return call.cuMemPrefetchAsync_v2(address, bytes, location, 0, stream);
}

}  // namespace

std::unique_ptr<Memory> ManagedMemory::open(const DriverTable& call, CUcontext context,
                                            CUdevice device, const Prefetching& prefetching,
                                            Failure& why) {
    std::unique_ptr<ManagedMemory> made(new ManagedMemory(call, context, device, prefetching));
    if (!made->make(why)) return nullptr;
    return made;
}

bool ManagedMemory::make(Failure& why) {
    int concurrent = 0;
    const bool has_calls =
        call_.cuMemAllocManaged != nullptr &&
        (call_.cuMemPrefetchAsync != nullptr || call_.cuMemPrefetchAsync_v2 != nullptr);
    if (!has_calls ||
        failed(call_.cuDeviceGetAttribute(&concurrent,
                                          CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device_),
               "cuDeviceGetAttribute", why) ||
        concurrent == 0) {
        why = Failure::refused(CUDA_ERROR_NOT_SUPPORTED,
                               "the card does not page managed memory while programs use it");
        return false;
    }
    if (failed(call_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
               "cuStreamCreateWithPriority", why)) {
        return false;
    }
    constexpr unsigned flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC;
    return std::all_of(events_.begin(), events_.end(), [&](CUevent& event) {
        return !failed(call_.cuEventCreate(&event, flags), "cuEventCreate", why);
    });
}

ManagedMemory::~ManagedMemory() {
    const SlowPathScope scope(call_, context_);
    if (stream_ != nullptr) call_.cuStreamSynchronize(stream_);
    for (const auto& [address, allocation] : allocations_) call_.cuMemFree_v2(address);
    for (const CUevent event : events_) {
        if (event != nullptr) call_.cuEventDestroy_v2(event);
    }
    if (stream_ != nullptr) call_.cuStreamDestroy_v2(stream_);
}

std::uint64_t ManagedMemory::allocate(std::uint64_t bytes, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    CUdeviceptr address = 0;
    const swap::Usage used = usage();
    const std::uint64_t all = used.unbacked + used.resident + used.arriving + used.swapped;
    if (bytes > kLargestRequest || all + round_up(bytes, kCounted) > limit_.load()) {
        why = Failure::out_of_memory();
        return 0;
    }
    if (failed(call_.cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged",
               why)) {
        return 0;
    }
    const std::uint64_t counted = round_up(bytes, kCounted);
    if (!if_host_memory_allows([&] {
            allocations_.emplace(address, Allocation{bytes, counted, counted, counted, ++ages_});
        })) {
        call_.cuMemFree_v2(address);
        why = Failure::out_of_memory();
        return 0;
    }
    untouched_.fetch_add(counted, std::memory_order_relaxed);
    return address;
}

bool ManagedMemory::free(std::uint64_t address, std::uint64_t& freed, Failure& why) {
    freed = 0;
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) {
        why = Failure::bad_value("no allocation is at " + std::to_string(address));
        return false;
    }
    if (!wait_for_arrivals(why) || failed(call_.cuMemFree_v2(address), "cuMemFree", why)) {
        return false;
    }
    Allocation& allocation = found->second;
    freed = allocation.counted - allocation.away;
    on_card_.fetch_sub(freed, std::memory_order_relaxed);
    on_host_.fetch_sub(allocation.away - allocation.untouched, std::memory_order_relaxed);
    untouched_.fetch_sub(allocation.untouched, std::memory_order_relaxed);
    allocations_.erase(found);
    return true;
}

std::optional<swap::Block> ManagedMemory::find(std::uint64_t address) const {
    const std::lock_guard guard(lock_);
    auto next = allocations_.upper_bound(address);
    if (next == allocations_.begin()) return {};
    --next;
    if (address - next->first >= next->second.bytes) return {};
    return swap::Block{next->first, next->second.bytes};
}

bool ManagedMemory::bring(swap::Credits& credits, std::uint64_t& missing, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    std::vector<Allocations::value_type*> all;
    if (!if_host_memory_allows([&] { all = by_age(); })) {
        why = Failure::out_of_memory();
        return false;
    }
    bool has_credits = true;
    for (auto next = all.rbegin(); has_credits && next != all.rend(); ++next) {
        while (has_credits && (*next)->second.away > 0) has_credits = bring_some(**next, credits);
    }
    missing = bytes_to_come();
    return true;
}

bool ManagedMemory::bring_some(Allocations::value_type& each, swap::Credits& credits) {
    Allocation& allocation = each.second;
    for (std::uint64_t step = kStep;; step /= 2) {
        const std::uint64_t from =
            allocation.away <= step ? 0 : round_up(allocation.away - step, kPage);
        if (!credits.take(allocation.away - from)) {
            if (step <= kPage) return false;
            continue;
        }
        Failure refused;
        if (prefetching_.in) {
            if (prefetch({&each, from, allocation.away}, device_, refused)) {
                arriving_ = true;
                const std::uint64_t moved = std::max(from, allocation.untouched);
                traffic_in_.fetch_add(allocation.away - std::min(allocation.away, moved),
                                      std::memory_order_relaxed);
            } else if (!refused_) {
                refused_ = true;
                log("device %d: cuMemPrefetchAsync: error %d; memory comes by page faults", device_,
                    static_cast<int>(refused.code));
            }
        }
        set(allocation, from, std::min(allocation.untouched, from));
        return true;
    }
}

bool ManagedMemory::finish(Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    return wait_for_arrivals(why);
}

bool ManagedMemory::move_out(std::uint64_t bytes, swap::Credits& credits, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    if (!wait_for_arrivals(why)) return false;
    const std::uint64_t wanted = std::min(bytes, card_bytes());
    Failure refusal;
    const std::uint64_t allowed = room_on_host(wanted, refusal);
    std::vector<Step> steps;
    if (!if_host_memory_allows([&] { steps = choose(allowed); })) {
        why = Failure::out_of_memory();
        return false;
    }
    // One step is on its way while the one before is waited for.
    std::size_t started = 0, landed = 0;
    bool going_well = true;
    while (landed < steps.size()) {
        while (going_well && started < steps.size() && started < landed + events_.size()) {
            going_well = start(steps[started], events_[started % events_.size()], why);
            if (going_well) ++started;
        }
        if (landed == started) return false;
        Failure waiting;
        if (!land(steps[landed], credits, waiting)) {
            why = waiting;
            return false;
        }
        ++landed;
    }
    if (allowed == wanted) return true;
    why = refusal;
    return false;
}

std::uint64_t ManagedMemory::room_on_host(std::uint64_t wanted, Failure& refusal) const {
    if (!prefetching_.out) return wanted;
    std::uint64_t allowed = wanted;
    if (prefetching_.host_limit > 0) {
        const std::uint64_t used = on_host_.load(std::memory_order_relaxed);
        const std::uint64_t room =
            prefetching_.host_limit - std::min(used, prefetching_.host_limit);
        allowed = std::min(wanted, room / kPage * kPage);
        refusal = Failure::out_of_memory();
        refusal.message = "the limit of host memory is reached";
    }
    const swap::HostRoom left = prefetching_.room();
    if (left.usable() >= allowed) return allowed;
    refusal = left.refusal(wanted);
    return left.usable() / kPage * kPage;
}

// False: the step does not count, though some of it may be leaving.
bool ManagedMemory::start(Step& step, CUevent event, Failure& why) {
    if (!prefetching_.out) return true;
    for (const Piece& piece : step.pieces) {
        if (!prefetch(piece, VRAMKIT_DEVICE_CPU, why)) return false;
    }
    if (call_.cuEventRecord(event, stream_) == CUDA_SUCCESS) step.event = event;
    return true;
}

bool ManagedMemory::land(const Step& step, swap::Credits& credits, Failure& why) {
    if (prefetching_.out && !is_broken(Rule::pages_have_left_before_their_credits)) {
        const bool waited =
            step.event != nullptr && call_.cuEventSynchronize(step.event) == CUDA_SUCCESS;
        if (!waited && failed(call_.cuStreamSynchronize(stream_), "cuStreamSynchronize", why)) {
            return false;
        }
    }
    std::uint64_t bytes = 0;
    for (const Piece& piece : step.pieces) {
        Allocation& allocation = piece.allocation->second;
        set(allocation, piece.until, allocation.untouched);
        bytes += piece.until - piece.from;
    }
    if (prefetching_.out) traffic_out_.fetch_add(bytes, std::memory_order_relaxed);
    credits.give(bytes);
    return true;
}

bool ManagedMemory::prefetch(const Piece& piece, CUdevice to, Failure& why) {
    const auto& [address, allocation] = *piece.allocation;
    const std::uint64_t until = std::min(piece.until, allocation.bytes);
    return !failed(prefetch_to(call_, address + piece.from, until - piece.from, to, stream_),
                   "cuMemPrefetchAsync", why);
}

std::vector<ManagedMemory::Allocations::value_type*> ManagedMemory::by_age() {
    std::vector<Allocations::value_type*> all;
    for (auto& each : allocations_) all.push_back(&each);
    std::sort(all.begin(), all.end(), [](const auto* one, const auto* other) {
        return one->second.age < other->second.age;
    });
    return all;
}

std::vector<ManagedMemory::Step> ManagedMemory::choose(std::uint64_t bytes) {
    std::vector<Step> steps;
    std::uint64_t of_step = kStep;  // in the last one
    for (auto* const each : by_age()) {
        const Allocation& allocation = each->second;
        for (std::uint64_t from = allocation.away; from < allocation.counted && bytes > 0;) {
            if (of_step >= kStep) {
                steps.emplace_back();
                of_step = 0;
            }
            const std::uint64_t wanted = round_up(std::min(bytes, kStep - of_step), kPage);
            const std::uint64_t until = std::min(allocation.counted, from + wanted);
            steps.back().pieces.push_back({each, from, until});
            of_step += until - from;
            bytes -= std::min(bytes, until - from);
            from = until;
        }
    }
    return steps;
}

void ManagedMemory::set(Allocation& allocation, std::uint64_t away, std::uint64_t untouched) {
    // Differences may be below zero: unsigned numbers wrap.
    on_card_.fetch_add(allocation.away - away, std::memory_order_relaxed);
    untouched_.fetch_add(untouched - allocation.untouched, std::memory_order_relaxed);
    on_host_.fetch_add((away - untouched) - (allocation.away - allocation.untouched),
                       std::memory_order_relaxed);
    allocation.away = away;
    allocation.untouched = untouched;
}

bool ManagedMemory::wait_for_arrivals(Failure& why) {
    if (!arriving_) return true;
    if (failed(call_.cuStreamSynchronize(stream_), "cuStreamSynchronize", why)) return false;
    arriving_ = false;
    return true;
}

std::uint64_t ManagedMemory::bytes_to_come() const {
    return untouched_.load(std::memory_order_relaxed) + on_host_.load(std::memory_order_relaxed);
}

swap::Usage ManagedMemory::usage() const {
    swap::Usage usage;
    usage.unbacked = untouched_.load(std::memory_order_relaxed);
    usage.resident = on_card_.load(std::memory_order_relaxed);
    usage.swapped = on_host_.load(std::memory_order_relaxed);
    return usage;
}

swap::Traffic ManagedMemory::traffic() const {
    return {traffic_out_.load(std::memory_order_relaxed),
            traffic_in_.load(std::memory_order_relaxed)};
}

std::uint64_t ManagedMemory::card_bytes() const { return on_card_.load(std::memory_order_relaxed); }

}  // namespace vramkit::share
