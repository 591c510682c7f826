#include "share/swapped_memory.h"

#include <algorithm>
#include <thread>

#include "share/kernels.h"

namespace vramkit::share {
namespace {

constexpr unsigned kMostPopulatingThreads = 16;

}  // namespace

std::unique_ptr<Memory> SwappedMemory::open(const DriverTable& call, CUcontext context,
                                            CUdevice device, const Settings& settings,
                                            Failure& why) {
    std::unique_ptr<SwappedMemory> made(new SwappedMemory(call));
    swap::Settings chosen;
    chosen.host.limit = settings.host_limit;
    chosen.host.threads = std::min(std::thread::hardware_concurrency(), kMostPopulatingThreads);
    // Without the kernel everything that leaves is copied.
    if (call.cuModuleLoadData(&made->kernels_, kernels_text()) != CUDA_SUCCESS ||
        call.cuModuleGetFunction(&chosen.hash, made->kernels_, "vk_hash128") != CUDA_SUCCESS) {
        chosen.hash = nullptr;
    }
    made->engine_ = swap::Engine::open(call, context, device, chosen, why);
    if (made->engine_ == nullptr) return nullptr;
    return made;
}

SwappedMemory::~SwappedMemory() {
    engine_.reset();
    if (kernels_ != nullptr) call_.cuModuleUnload(kernels_);
}

std::uint64_t SwappedMemory::allocate(std::uint64_t bytes, Failure& why) {
    return engine_->allocate(bytes, why);
}

bool SwappedMemory::free(std::uint64_t address, std::uint64_t& freed, Failure& why) {
    return engine_->free(address, freed, why);
}

std::optional<swap::Block> SwappedMemory::find(std::uint64_t address) const {
    return engine_->find(address);
}

bool SwappedMemory::bring(swap::Credits& credits, std::uint64_t& missing, Failure& why) {
    return engine_->make_all_resident(credits, missing, why);
}

bool SwappedMemory::finish(Failure& why) { return engine_->finish(why); }

bool SwappedMemory::move_out(std::uint64_t bytes, swap::Credits& credits, Failure& why) {
    return engine_->swap_out(bytes, credits, why);
}

bool SwappedMemory::prepare_host(std::uint64_t bytes, Failure& why) {
    return engine_->prepare_host(bytes, why);
}

std::uint64_t SwappedMemory::bytes_to_come() const { return engine_->bytes_to_come(); }
swap::Usage SwappedMemory::usage() const { return engine_->usage(); }
swap::Traffic SwappedMemory::traffic() const { return engine_->traffic(); }
std::uint64_t SwappedMemory::card_bytes() const { return engine_->counters().card_bytes; }

}  // namespace vramkit::share
