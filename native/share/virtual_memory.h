// Virtual memory calls on memory of ours: for those of the program, and for the pool behind its
// stream-ordered allocations. The answers are those of the driver's calls of similar names.
#pragma once

#include "share/card.h"

namespace vramkit::share::virtual_memory {

// Whole pages, without any special kind.
CUresult create(Card& card, CUmemGenericAllocationHandle* handle, std::size_t bytes,
                const CUmemAllocationProp& properties);
CUresult release(Card& card, CUmemGenericAllocationHandle handle);
CUresult map(Card& card, CUdeviceptr pointer, std::size_t bytes, std::size_t offset,
             CUmemGenericAllocationHandle handle);
CUresult unmap(Card& card, CUdeviceptr pointer, std::size_t bytes);
CUresult set_access(Card& card, CUdeviceptr pointer, std::size_t bytes,
                    const CUmemAccessDesc* access, std::size_t count);

}  // namespace vramkit::share::virtual_memory
