// Takes resident weights back for whoever is short of memory.
#include "weights/giving_way.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace vramkit::weights {

GivingWay::GivingWay(Streamer& streamer, std::shared_ptr<pool::Pool> pool, const StreamRef& stream)
    : streamer_(streamer), pool_(std::move(pool)), stream_(stream) {
    callback_ = pool_->shortage().add([this](std::uint64_t bytes) { return give_way(bytes); });
}

GivingWay::~GivingWay() {
    pool_->shortage().remove(callback_);
    for (const Settled& each : settled_) {
        Failure why;
        // If the driver fails here, the block stays with the pool: it must not be handed out while
        // it may be in use.
        if (streamer_.order_behind(each.group, stream_.handle, why)) {
            pool_->free(each.block.address, each.block.bytes, stream_, why);
        }
    }
    free_vacated();
}

void GivingWay::settle(GroupIndex group, std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    settled_.push_back({group, {address, bytes}});
}

std::vector<GroupIndex> GivingWay::settled() const {
    const std::lock_guard guard(lock_);
    std::vector<GroupIndex> groups;
    for (const Settled& each : settled_) groups.push_back(each.group);
    return groups;
}

std::uint64_t GivingWay::give_way(std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    // Read once: other threads use groups meanwhile.
    std::vector<std::pair<std::uint64_t, Settled>> by_last_use;
    for (const Settled& each : settled_) {
        by_last_use.emplace_back(streamer_.last_use(each.group), each);
    }
    std::ranges::stable_sort(by_last_use, std::ranges::greater{},
                             &std::pair<std::uint64_t, Settled>::first);
    vacated_.reserve(vacated_.size() + settled_.size());  // nothing below needs host memory
    std::uint64_t freed = free_vacated();
    for (const auto& [last_use, each] : by_last_use) {
        if (freed >= bytes) break;
        Failure why;
        if (!streamer_.vacate(each.group, stream_.handle, why)) continue;
        std::erase_if(settled_, [&](const Settled& one) { return one.group == each.group; });
        ++counts_.groups;
        vacated_.push_back(each.block);
        freed += free_vacated();
    }
    return freed;
}

std::uint64_t GivingWay::free_vacated() {
    std::uint64_t freed = 0;
    std::erase_if(vacated_, [&](const Block& each) {
        Failure why;
        if (!pool_->free(each.address, each.bytes, stream_, why)) return false;
        freed += each.bytes;
        return true;
    });
    counts_.bytes += freed;
    return freed;
}

void GivingWay::forget() {
    const std::lock_guard guard(lock_);
    settled_.clear();
    vacated_.clear();
}

GivingWay::Counts GivingWay::counts() const {
    const std::lock_guard guard(lock_);
    return counts_;
}

}  // namespace vramkit::weights
