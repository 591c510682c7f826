#include "share/unswappable.h"

#include <algorithm>

#include "base/host_memory.h"
#include "base/scopes.h"
#include "share/program.h"

namespace vramkit::share {

Unswappable& Unswappable::get() {
    static Unswappable& made = *std::make_unique<Unswappable>().release();
    return made;
}

Unswappable::Counted::Counted(CUdevice device, std::uint64_t bytes)
    : device_(device), bytes_(bytes) {
    add(static_cast<std::int64_t>(bytes_));
}

Unswappable::Counted::~Counted() { add(-static_cast<std::int64_t>(bytes_)); }

// A card that was reset in the meantime is another one: what it had is forgotten before it is
// opened again.
void Unswappable::Counted::add(std::int64_t bytes) const {
    Program::get().each_card([&](Card& card) {
        if (card.device() == device_) card.note_unswappable(bytes);
    });
}

void Unswappable::note(CUdevice device, std::uint64_t address, std::uint64_t bytes,
                       CUcontext context) {
    const std::lock_guard guard(lock_);
    if_host_memory_allows([&] {
        allocations_[address] = Allocation{std::make_shared<Counted>(device, bytes), context};
    });
}

void Unswappable::forget(std::uint64_t address) {
    const std::lock_guard guard(lock_);
    allocations_.erase(address);
}

void Unswappable::forget_all_of(CUcontext context) {
    const std::lock_guard guard(lock_);
    std::erase_if(allocations_, [=](const auto& each) { return each.second.context == context; });
}

void Unswappable::forget_all_of(CUdevice device) {
    const std::lock_guard guard(lock_);
    std::erase_if(allocations_,
                  [=](const auto& each) { return each.second.counted->device() == device; });
    std::erase_if(handles_,
                  [=](const auto& each) { return each.second.counted->device() == device; });
    std::erase_if(mappings_, [=](const auto& each) { return each.second->device() == device; });
}

void Unswappable::free_all_of(CUcontext context, const DriverTable& call) {
    const SlowPathScope scope(call, context);
    for (;;) {
        std::uint64_t address = 0;
        {
            const std::lock_guard guard(lock_);
            const auto known =
                std::find_if(allocations_.begin(), allocations_.end(),
                             [=](const auto& each) { return each.second.context == context; });
            if (known == allocations_.end()) return;
            address = known->first;
            allocations_.erase(known);
        }
        call.cuMemFree_v2(address);
    }
}

void Unswappable::note_handle(CUdevice device, std::uint64_t handle, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    if_host_memory_allows(
        [&] { handles_[handle] = Handle{std::make_shared<Counted>(device, bytes), 1}; });
}

void Unswappable::retain_handle(std::uint64_t handle) {
    const std::lock_guard guard(lock_);
    if (const auto known = handles_.find(handle); known != handles_.end()) {
        ++known->second.references;
    }
}

void Unswappable::release_handle(std::uint64_t handle) {
    const std::lock_guard guard(lock_);
    const auto known = handles_.find(handle);
    if (known != handles_.end() && --known->second.references == 0) handles_.erase(known);
}

void Unswappable::note_mapping(std::uint64_t address, std::uint64_t handle) {
    const std::lock_guard guard(lock_);
    const auto known = handles_.find(handle);
    if (known == handles_.end()) return;
    if_host_memory_allows([&] { mappings_[address] = known->second.counted; });
}

void Unswappable::forget_mappings(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    mappings_.erase(mappings_.lower_bound(address), mappings_.lower_bound(address + bytes));
}

}  // namespace vramkit::share
