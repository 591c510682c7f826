// Tells a tool such as compute-sanitizer which parts of the pool's memory are in use: the pool's
// one allocation is a heap, every block in use a region of it. Memory of the heap outside of
// regions must not be accessed.
//
// compute-sanitizer refuses heaps in memory of cuMemMap. With NVTX the pool therefore uses one
// cuMemAlloc (Addresses::allocate).
//
// In a graph's memory a region stays when the block is freed: the graph uses it at every launch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "pool/nvtx/nvtx_tool.h"

namespace vramkit::pool {

// From any thread. Its lock is the last in the lock order: only the tool is called with it held.
class NvtxMarks {
  public:
    // With the allocation as heap. Null: there is no tool.
    static std::unique_ptr<NvtxMarks> make(std::uint64_t address, std::uint64_t bytes);

    // A block is handed out. Regions that were registered there before are removed.
    void add_block(std::uint64_t address, std::uint64_t bytes);
    // Removes all regions there.
    void remove_block(std::uint64_t address, std::uint64_t bytes);
    // The allocation goes: removes the heap and all regions; later calls do nothing.
    void clear();

  private:
    NvtxMarks(const nvtx::Tool& tool, nvtx::Heap heap) : tool_(tool), heap_(heap) {}
    void unregister_regions(std::uint64_t begin, std::uint64_t end);

    const nvtx::Tool& tool_;
    std::mutex lock_;
    nvtx::Heap heap_;                                 // null: the tool refused it, or it is gone
    std::map<std::uint64_t, std::uint64_t> regions_;  // address -> bytes
};

}  // namespace vramkit::pool
