// RMM's memory resources behind an interface that names no type of RMM or of the CUDA runtime,
// whose headers cannot be read together with our declarations of the driver.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace bench {

class RmmResource {
  public:
    virtual ~RmmResource() = default;
    // Null where RMM says that it is out of memory; other errors are thrown.
    virtual void* allocate(std::size_t bytes, void* stream) = 0;
    virtual void deallocate(void* address, std::size_t bytes, void* stream) = 0;
};

// name: pool, arena, async or binning, with the settings of RMM's own benchmarks: the pool starts
// with half of the free memory, the arena with all but 64 MiB, bins of 2^18 to 2^22 bytes lie over
// the pool. With a cap, pool and arena have exactly that much; the driver's own pool (async) knows
// none.
std::unique_ptr<RmmResource> make_rmm_resource(const std::string& name, std::size_t cap);

}  // namespace bench
