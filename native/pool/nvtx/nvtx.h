// Tells a tool such as compute-sanitizer what of the pool's memory is in use: the pool's one
// allocation is a heap, every block in use a region of it. What lies in the heap and in no region
// must not be touched.
//
// compute-sanitizer refuses heaps in memory of cuMemMap. So the pool lives in one cuMemAlloc then
// (Addresses::allocate).
//
// In a graph's memory a region stays when the block is freed: the graph uses it at every launch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "pool/nvtx/nvtx_tool.h"

namespace vramkit::pool {

// From any thread. Its lock is the last of all: with it held nothing but the tool is called.
class NvtxMarks {
  public:
    // With the allocation as heap. Null: there is no tool, and nobody to tell.
    static std::unique_ptr<NvtxMarks> make(std::uint64_t address, std::uint64_t bytes);

    // A block is handed out. What was marked there before goes.
    void add_block(std::uint64_t address, std::uint64_t bytes);
    // Whatever is marked there.
    void remove_block(std::uint64_t address, std::uint64_t bytes);
    // The allocation goes: so do all marks, and none are made any more.
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
