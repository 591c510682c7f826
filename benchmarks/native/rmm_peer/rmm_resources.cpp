// The only file that knows RMM. A call through it costs one virtual call more than RMM itself.
#include "rmm_resources.h"

#include <cuda_runtime_api.h>

#include <cuda/stream_ref>
#include <rmm/aligned.hpp>
#include <rmm/cuda_device.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <stdexcept>
#include <utility>

namespace bench {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kLeftByArena = std::size_t{64} << 20;
constexpr int kSmallestBin = 18;
constexpr int kLargestBin = 22;

template <class Resource>
class Held final : public RmmResource {
  public:
    explicit Held(Resource resource) : resource_(std::move(resource)) {}

    void* allocate(std::size_t bytes, void* stream) override {
        try {
            return resource_.allocate(ref(stream), bytes, kAlignment);
        } catch (const rmm::out_of_memory&) {
            return nullptr;
        }
    }
    void deallocate(void* address, std::size_t bytes, void* stream) override {
        resource_.deallocate(ref(stream), address, bytes, kAlignment);
    }

  private:
    static cuda::stream_ref ref(void* stream) {
        return cuda::stream_ref{static_cast<cudaStream_t>(stream)};
    }

    Resource resource_;
};

template <class Resource>
std::unique_ptr<RmmResource> held(Resource resource) {
    return std::make_unique<Held<Resource>>(std::move(resource));
}

std::size_t aligned(std::size_t bytes) { return rmm::align_down(bytes, kAlignment); }

rmm::mr::pool_memory_resource make_pool(std::size_t cap) {
    const rmm::mr::cuda_memory_resource card;
    if (cap > 0) return rmm::mr::pool_memory_resource(card, aligned(cap), aligned(cap));
    return rmm::mr::pool_memory_resource(card, rmm::percent_of_free_device_memory(50));
}

}  // namespace

std::unique_ptr<RmmResource> make_rmm_resource(const std::string& name, std::size_t cap) {
    if (name == "pool") return held(make_pool(cap));
    if (name == "binning") {
        return held(rmm::mr::binning_memory_resource(make_pool(cap), kSmallestBin, kLargestBin));
    }
    if (name == "arena") {
        const std::size_t free = rmm::available_device_memory().first;
        const std::size_t bytes = cap > 0 ? cap : free - kLeftByArena;
        return held(
            rmm::mr::arena_memory_resource(rmm::mr::cuda_memory_resource(), aligned(bytes)));
    }
    if (name == "async") return held(rmm::mr::cuda_async_memory_resource());
    throw std::invalid_argument("RMM has no resource '" + name + "' here");
}

}  // namespace bench
