// Superblocks out of the slab, blocks out of superblocks.
#include "resources/arena.h"

#include <utility>
#include <vector>

#include "base/scopes.h"

namespace vramkit::resources {

std::shared_ptr<Arena> Arena::open(std::shared_ptr<Driver> driver, CUcontext context,
                                   std::uint64_t bytes, Failure& why) {
    std::shared_ptr<Arena> made(new Arena(std::move(driver), context));
    const SlowPathScope scope(made->call(), context);
    const std::uint64_t size = round_up(bytes, kSuperblock);
    const CUresult done = made->slab_.open(size);
    if (done != CUDA_SUCCESS) {
        made->refuse(done, "cuMemAlloc_v2", bytes, why);
        return nullptr;
    }
    made->global_.insert(made->slab_.address(), size);
    return made;
}

std::uint64_t Arena::take(std::uint64_t bytes, StreamRef stream, Failure& why) {
    const std::uint64_t size = round_up(bytes, kAlignment);
    OfStream& own = arena_of(stream);
    std::uint64_t address = 0;
    {
        const std::lock_guard guard(own.lock);
        address = own.list.take_best(size);
    }
    if (address == 0) {
        const std::uint64_t superblocks = round_up(size, kSuperblock);
        address = take_superblocks(superblocks);
        if (address == 0) {
            out_of_memory(bytes,
                          "its " + std::to_string(slab_.bytes()) + " bytes have no " +
                              std::to_string(superblocks / kSuperblock) +
                              " free superblocks of 4 MiB side by side",
                          why);
            return 0;
        }
        if (superblocks > size) {
            const std::lock_guard guard(own.lock);
            own.list.insert(address + size, superblocks - size);
        }
    }
    slab_.checker().block_allocated(address, bytes, stream.handle);
    return address;
}

bool Arena::give(std::uint64_t address, const Block& block, StreamRef at, Failure& why) {
    slab_.checker().block_freed(address, block.bytes, at.handle);
    if (at.id != block.stream.id && !order(block.stream, at, why)) {
        slab_.checker().block_allocated(address, block.bytes, at.handle);
        return false;
    }
    OfStream& arena = arena_of(block.stream);
    const std::lock_guard guard(arena.lock);
    arena.list.insert(address, round_up(block.bytes, kAlignment));
    return true;
}

bool Arena::order(const StreamRef& own, const StreamRef& at, Failure& why) {
    if (can_name(own)) return wait_on_gpu(own.handle, at.handle, why);
    // Only collect() takes from the arena of an ended stream, and it waits for the card.
    if (own.handle != VRAMKIT_STREAM_PER_THREAD) return true;
    const CUresult waited = call().cuStreamSynchronize(at.handle);
    return waited == CUDA_SUCCESS || refuse(waited, "cuStreamSynchronize", 0, why);
}

Arena::OfStream& Arena::arena_of(const StreamRef& stream) {
    {
        const std::shared_lock guard(arenas_lock_);
        const auto found = arenas_.find(stream.id);
        if (found != arenas_.end()) return found->second;
    }
    const std::lock_guard guard(arenas_lock_);
    return arenas_[stream.id];
}

std::uint64_t Arena::take_superblocks(std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    if (const std::uint64_t address = global_.take_best(bytes); address != 0) return address;
    if (bytes > slab_.bytes()) return 0;
    collect();
    return global_.take_best(bytes);
}

void Arena::collect() {
    struct Found {
        OfStream* arena;
        std::uint64_t address;
        std::uint64_t size;
    };
    // Taken out of the arenas before the wait: what is freed during it must not be included.
    std::vector<Found> found;
    const std::shared_lock arenas(arenas_lock_);
    for (auto& [id, arena] : arenas_) {
        const std::lock_guard guard(arena.lock);
        const std::size_t before = found.size();
        for (const auto& [address, size] : arena.list.ranges()) {
            const std::uint64_t offset = address - slab_.address();
            const std::uint64_t first = round_up(offset, kSuperblock);
            const std::uint64_t last = (offset + size) / kSuperblock * kSuperblock;
            if (first < last) found.push_back({&arena, slab_.address() + first, last - first});
        }
        for (std::size_t i = before; i < found.size(); ++i) {
            arena.list.take_at(found[i].address, found[i].size);
        }
    }
    const bool done = call().cuCtxSynchronize() == CUDA_SUCCESS;
    for (const Found& range : found) {
        if (done) {
            global_.insert(range.address, range.size);
        } else {
            const std::lock_guard guard(range.arena->lock);
            range.arena->list.insert(range.address, range.size);
        }
    }
}

std::uint64_t Arena::free_bytes() const {
    const std::lock_guard guard(lock_);
    const std::shared_lock arenas(arenas_lock_);
    std::uint64_t sum = global_.bytes();
    for (const auto& [id, arena] : arenas_) {
        const std::lock_guard inner(arena.lock);
        sum += arena.list.bytes();
    }
    return sum;
}

void Arena::give_back_everything() {
    const std::lock_guard guard(lock_);
    const std::lock_guard arenas(arenas_lock_);
    arenas_.clear();
    global_ = RangeSet();
    slab_.close();
}

}  // namespace vramkit::resources
