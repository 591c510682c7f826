// Best fit, stream by stream.
#include "resources/fixed_pool.h"

#include <algorithm>
#include <utility>

#include "base/scopes.h"

namespace vramkit::resources {

std::shared_ptr<FixedPool> FixedPool::open(std::shared_ptr<Driver> driver, CUcontext context,
                                           std::uint64_t bytes, Failure& why) {
    std::shared_ptr<FixedPool> made(new FixedPool(std::move(driver), context));
    const SlowPathScope scope(made->call(), context);
    const std::uint64_t size = round_up(bytes, kAlignment);
    const CUresult done = made->slab_.open(size);
    if (done != CUDA_SUCCESS) {
        made->refuse(done, "cuMemAlloc_v2", bytes, why);
        return nullptr;
    }
    made->unused_.insert(made->slab_.address(), size);
    return made;
}

std::uint64_t FixedPool::take(std::uint64_t bytes, StreamRef stream, Failure& why) {
    const std::lock_guard guard(lock_);
    const std::uint64_t address = find(round_up(bytes, kAlignment), stream, why);
    if (address != 0) {
        slab_.checker().block_allocated(address, bytes, stream.handle);
    } else if (why.kind == Failure::Kind::none) {
        std::uint64_t free = unused_.bytes(), largest = unused_.largest();
        for (const auto& [id, other] : freed_) {
            free += other.list.bytes();
            largest = std::max(largest, other.list.largest());
        }
        out_of_memory(bytes,
                      "of its " + std::to_string(slab_.bytes()) + " bytes " + std::to_string(free) +
                          " are free, the largest hole has " + std::to_string(largest),
                      why);
    }
    return address;
}

std::uint64_t FixedPool::find(std::uint64_t size, StreamRef stream, Failure& why) {
    Freed& own = freed_[stream.id];
    if (const std::uint64_t address = own.list.take_best(size); address != 0) return address;
    if (const std::uint64_t address = unused_.take_best(size); address != 0) return address;
    for (auto& [id, other] : freed_) {
        if (&other == &own || other.list.largest() < size) continue;
        if (!wait_for(other, stream, why)) return 0;
        return other.list.take_best(size);
    }
    if (size > slab_.bytes()) return 0;
    for (auto& [id, other] : freed_) {
        if (&other == &own || other.list.empty()) continue;
        if (!wait_for(other, stream, why)) return 0;
        own.list.insert_all(other.list);
        // The joined memory is free only behind this stream's wait, so its event must be too.
        if (!record(own, stream, why)) return 0;
    }
    own.list.insert_all(unused_);
    return own.list.take_best(size);
}

bool FixedPool::give(std::uint64_t address, const Block& block, StreamRef at, Failure& why) {
    const std::lock_guard guard(lock_);
    Freed& own = freed_[at.id];
    slab_.checker().block_freed(address, block.bytes, at.handle);
    if (!record(own, at, why)) {
        slab_.checker().block_allocated(address, block.bytes, at.handle);
        return false;
    }
    own.list.insert(address, round_up(block.bytes, kAlignment));
    return true;
}

bool FixedPool::record(Freed& freed, StreamRef stream, Failure& why) {
    if (freed.event == nullptr) {
        const CUresult made = call().cuEventCreate(&freed.event, CU_EVENT_DISABLE_TIMING);
        if (made != CUDA_SUCCESS) {
            freed.event = nullptr;
            return refuse(made, "cuEventCreate", 0, why);
        }
    }
    const CUresult done = call().cuEventRecord(freed.event, stream.handle);
    return done == CUDA_SUCCESS || refuse(done, "cuEventRecord", 0, why);
}

bool FixedPool::wait_for(const Freed& freed, StreamRef stream, Failure& why) {
    if (freed.event == nullptr) return true;
    const CUresult done = call().cuStreamWaitEvent(stream.handle, freed.event, 0);
    return done == CUDA_SUCCESS || refuse(done, "cuStreamWaitEvent", 0, why);
}

std::uint64_t FixedPool::free_bytes() const {
    const std::lock_guard guard(lock_);
    std::uint64_t sum = unused_.bytes();
    for (const auto& [id, freed] : freed_) sum += freed.list.bytes();
    return sum;
}

void FixedPool::give_back_everything() {
    const std::lock_guard guard(lock_);
    for (const auto& [id, freed] : freed_) {
        if (freed.event != nullptr) call().cuEventDestroy_v2(freed.event);
    }
    freed_.clear();
    unused_ = RangeSet();
    slab_.close();
}

}  // namespace vramkit::resources
