// Tells a tool such as compute-sanitizer what of the pool's memory is in use: every mapping is a
// heap, every block in use a region of it. What lies in a heap and in no region must not be
// touched.
//
// A block that lies on several mappings is a region on each. In a graph's memory a region stays
// when the block is freed: the graph uses it at every launch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "pool/nvtx_tool.h"

namespace vramkit::pool {

// From any thread. Its lock is the last of all: with it held nothing but the tool is called.
class NvtxMarks {
  public:
    // Null: there is no tool, and nobody to tell.
    static std::unique_ptr<NvtxMarks> make();

    void add_heap(std::uint64_t address, std::uint64_t bytes);
    // With the regions in it. False: there was none.
    bool remove_heap(std::uint64_t address);
    // A block is handed out. What was marked there before goes.
    void add_block(std::uint64_t address, std::uint64_t bytes);
    // Whatever is marked there.
    void remove_block(std::uint64_t address, std::uint64_t bytes);
    // Nothing is mapped any more.
    void clear();

  private:
    struct Heap {
        std::uint64_t bytes = 0;
        nvtx::Heap handle = nullptr;
    };
    using Heaps = std::map<std::uint64_t, Heap>;

    explicit NvtxMarks(const nvtx::Tool& tool) : tool_(tool) {}
    void unregister_heap(Heaps::iterator heap);
    void unregister_regions(std::uint64_t begin, std::uint64_t end);

    const nvtx::Tool& tool_;
    std::mutex lock_;
    Heaps heaps_;                                     // by address
    std::map<std::uint64_t, std::uint64_t> regions_;  // address -> bytes
};

}  // namespace vramkit::pool
