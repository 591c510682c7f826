// Registers one heap and its regions.
#include "pool/nvtx/nvtx.h"

#include <limits>
#include <vector>

namespace vramkit::pool {

std::unique_ptr<NvtxMarks> NvtxMarks::make(std::uint64_t address, std::uint64_t bytes) {
    const nvtx::Tool* const tool = nvtx::tool();
    if (tool == nullptr) return nullptr;
    const nvtx::Range range{bytes, address};
    nvtx::HeapDescription heap;
    heap.range = &range;
    return std::unique_ptr<NvtxMarks>(
        new NvtxMarks(*tool, tool->heap_register(tool->domain, &heap)));
}

void NvtxMarks::add_block(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    if (heap_ == nullptr) return;
    unregister_regions(address, address + bytes);
    const nvtx::Range range{bytes, address};
    nvtx::RegionsToRegister regions;
    regions.heap = heap_;
    regions.count = 1;
    regions.ranges = &range;
    tool_.regions_register(tool_.domain, &regions);
    regions_[address] = bytes;
}

void NvtxMarks::remove_block(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    unregister_regions(address, address + bytes);
}

void NvtxMarks::clear() {
    const std::lock_guard guard(lock_);
    if (heap_ == nullptr) return;
    unregister_regions(0, std::numeric_limits<std::uint64_t>::max());
    tool_.heap_unregister(tool_.domain, heap_);
    heap_ = nullptr;
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
