// Heaps and regions.
#include "pool/nvtx.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace vramkit::pool {

std::unique_ptr<NvtxMarks> NvtxMarks::make() {
    const nvtx::Tool* const tool = nvtx::tool();
    return std::unique_ptr<NvtxMarks>(tool == nullptr ? nullptr : new NvtxMarks(*tool));
}

void NvtxMarks::add_heap(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    const nvtx::Range range{bytes, address};
    nvtx::HeapDescription heap;
    heap.range = &range;
    heaps_[address] = {bytes, tool_.heap_register(tool_.domain, &heap)};
}

bool NvtxMarks::remove_heap(std::uint64_t address) {
    const std::lock_guard guard(lock_);
    const auto heap = heaps_.find(address);
    if (heap == heaps_.end()) return false;
    unregister_heap(heap);
    return true;
}

void NvtxMarks::add_block(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    const std::uint64_t end = address + bytes;
    unregister_regions(address, end);
    auto heap = heaps_.upper_bound(address);
    if (heap != heaps_.begin()) --heap;
    for (; heap != heaps_.end() && heap->first < end; ++heap) {
        const std::uint64_t from = std::max(address, heap->first);
        const std::uint64_t to = std::min(end, heap->first + heap->second.bytes);
        if (from >= to) continue;
        const nvtx::Range range{to - from, from};
        nvtx::RegionsToRegister regions;
        regions.heap = heap->second.handle;
        regions.count = 1;
        regions.ranges = &range;
        tool_.regions_register(tool_.domain, &regions);
        regions_[from] = to - from;
    }
}

void NvtxMarks::remove_block(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    unregister_regions(address, address + bytes);
}

void NvtxMarks::clear() {
    const std::lock_guard guard(lock_);
    while (!heaps_.empty()) unregister_heap(heaps_.begin());
}

void NvtxMarks::unregister_heap(Heaps::iterator heap) {
    unregister_regions(heap->first, heap->first + heap->second.bytes);
    tool_.heap_unregister(tool_.domain, heap->second.handle);
    heaps_.erase(heap);
}

void NvtxMarks::unregister_regions(std::uint64_t begin, std::uint64_t end) {
    const auto first = regions_.lower_bound(begin), last = regions_.lower_bound(end);
    std::vector<std::uint64_t> addresses;
    for (auto region = first; region != last; ++region) addresses.push_back(region->first);
    if (addresses.empty()) return;
    nvtx::RegionsToUnregister regions;
    regions.count = addresses.size();
    regions.addresses = addresses.data();
    tool_.regions_unregister(tool_.domain, &regions);
    regions_.erase(first, last);
}

}  // namespace vramkit::pool
