// The pools of a machine: default, current, created ones, and destroyed ones that are still in use.
#include <algorithm>
#include <utility>

#include "sim/machine/machine.h"
#include "sim/memory/memory_pool.h"

namespace vramkit::sim {

MemoryPool& Pools::default_of(int device) {
    auto& pool = defaults_[device];
    if (pool == nullptr) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
        pool = std::make_unique<MemoryPool>(machine_, properties);
    }
    return *pool;
}

MemoryPool& Pools::current_of(int device) {
    const auto it = current_.find(device);
    return it == current_.end() ? default_of(device) : *it->second;
}

void Pools::make_current(int device, MemoryPool* pool) { current_[device] = pool; }

MemoryPool* Pools::find(CUmemoryPool handle) {
    auto* pool = reinterpret_cast<MemoryPool*>(handle);
    return created_.contains(pool) || is_default(pool) ? pool : nullptr;
}

MemoryPool* Pools::make(const CUmemPoolProps& properties) {
    auto pool = std::make_unique<MemoryPool>(machine_, properties);
    MemoryPool* made = pool.get();
    created_.emplace(made, std::move(pool));
    return made;
}

bool Pools::is_default(const MemoryPool* pool) const {
    return std::any_of(defaults_.begin(), defaults_.end(),
                       [&](const auto& entry) { return entry.second.get() == pool; });
}

void Pools::destroy(MemoryPool* pool) {
    std::erase_if(current_, [&](const auto& entry) { return entry.second == pool; });
    dying_.push_back(std::move(created_.extract(pool).mapped()));
    bury();
}

// Frees what destroyed pools held, once nothing of it is used any more.
void Pools::bury() {
    std::erase_if(dying_, [](const auto& pool) {
        if (!pool->idle()) return false;
        pool->trim(0);
        return true;
    });
}

template <class Visit>
void Pools::each(Visit visit) const {
    for (const auto& [device, pool] : defaults_) visit(*pool);
    for (const auto& [handle, pool] : created_) visit(*pool);
    for (const auto& pool : dying_) visit(*pool);
}

Pools::Found Pools::block_around(std::uint64_t address) const {
    Found found;
    each([&](MemoryPool& pool) {
        const auto [begin, block] = pool.block_around(address);
        if (block != nullptr) found = Found{&pool, begin, block};
    });
    return found;
}

std::vector<std::uint64_t> Pools::synchronised() {
    std::vector<std::uint64_t> dropped;
    each([&](MemoryPool& pool) {
        pool.settle();
        if (pool.reserved <= pool.threshold) return;
        const auto more = pool.trim(pool.threshold);
        dropped.insert(dropped.end(), more.begin(), more.end());
    });
    bury();
    return dropped;
}

void Pools::trim_all(int device) {
    each([&](MemoryPool& pool) {
        if (pool.properties.location.id == device) pool.trim(0);
    });
}

void Pools::free_blocks_of(const Context* context) {
    each([&](MemoryPool& pool) { pool.free_blocks_of(context); });
    bury();
}

void Pools::each_open(const std::function<void(const Site&, std::uint64_t)>& visit) const {
    each([&](const MemoryPool& pool) { pool.each_open(visit); });
}

std::size_t Pools::blocks() const {
    std::size_t count = 0;
    each([&](const MemoryPool& pool) { count += pool.blocks(); });
    return count;
}

}  // namespace vramkit::sim
