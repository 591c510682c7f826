#include "share/card.h"

#include <algorithm>

#include "base/host_memory.h"
#include "base/scopes.h"
#include "share/log.h"
#include "share/managed_memory.h"
#include "share/swapped_memory.h"

namespace vramkit::share {
Card::Card(std::shared_ptr<Driver> driver, CUdevice device, CUcontext context)
    : driver_(std::move(driver)),
      call_(driver_->call()),
      device_(device),
      context_(context),
      checker_(*driver_),
      sync_(call_, checker_) {}

std::unique_ptr<Card> Card::open(std::shared_ptr<Driver> driver, CUdevice device,
                                 const Settings& settings, Failure& why) {
    CUcontext context = nullptr;
    if (failed(driver->call().cuDevicePrimaryCtxRetain(&context, device),
               "cuDevicePrimaryCtxRetain", why)) {
        return nullptr;
    }
    std::unique_ptr<Card> card(new Card(std::move(driver), device, context));
    return card->make(settings, why) ? std::move(card) : nullptr;
}

bool Card::make(const Settings& settings, Failure& why) {
    const SlowPathScope scope(call_, context_);
    size_t total = 0;
    if (failed(call_.cuDeviceTotalMem_v2(&total, device_), "cuDeviceTotalMem", why)) return false;
    card_bytes_ = total;
    own_limit_ = settings.memory;
    memory_ = open_memory(settings, why);
    return memory_ != nullptr;
}

std::unique_ptr<Memory> Card::open_memory(const Settings& settings, Failure& why) {
    if (settings.mode != Mode::swap) {
        ManagedMemory::Prefetching prefetching;
        // The self-test moves everything out in either mode.
        prefetching.out = settings.mode == Mode::prefetch || settings.chaos != 0;
        prefetching.in = settings.mode == Mode::prefetch;
        prefetching.host_limit = settings.host_limit;
        auto opened = ManagedMemory::open(call_, context_, device_, prefetching, why);
        if (opened != nullptr) return opened;
        log("device %d: %s %s; its memory is swapped instead", device_,
            std::string(why.call).c_str(), why.message.c_str());
    }
    return SwappedMemory::open(call_, context_, device_, settings, why);
}

Card::~Card() {
    {
        const SlowPathScope scope(call_, context_);
        memory_.reset();
    }
    call_.cuDevicePrimaryCtxRelease_v2(device_);
}

std::uint64_t Card::limit() const {
    std::uint64_t limit = card_bytes_;
    for (const std::uint64_t each : {own_limit_, told_limit_.load(std::memory_order_relaxed)}) {
        if (each != 0) limit = std::min(limit, each);
    }
    return limit;
}

std::uint64_t Card::in_use() const {
    const swap::Usage usage = memory_->usage();
    return usage.unbacked + usage.resident + usage.arriving + usage.swapped + unswappable();
}

// Chunks are larger than what is asked for, and threads allocate at the same time: the memory
// itself has the last word.
bool Card::limit_memory(std::uint64_t bytes) {
    const std::uint64_t all = limit(), fixed = unswappable();
    if (fixed >= all || bytes > all - fixed) return false;
    memory_->set_limit(all - fixed);
    return true;
}

std::uint64_t Card::allocate(std::uint64_t bytes, CUcontext context, Failure& why) {
    if (!limit_memory(bytes)) {
        why = Failure::out_of_memory();
        return 0;
    }
    const std::uint64_t address = memory_->allocate(bytes, why);
    if (address == 0) return 0;
    const std::lock_guard guard(owners_lock_);
    if (if_host_memory_allows([&] { owners_.emplace(address, context); })) return address;
    std::uint64_t freed = 0;
    memory_->free(address, freed, why);
    why = Failure::out_of_memory();
    return 0;
}

bool Card::free(std::uint64_t address, Failure& why) {
    {
        const std::lock_guard guard(owners_lock_);
        owners_.erase(address);
    }
    bool done = false;
    give_back([&] {
        std::uint64_t freed = 0;
        done = memory_->free(address, freed, why);
        return freed;
    });
    return done;
}

std::optional<Card::Owned> Card::find(std::uint64_t address) const {
    const auto block = memory_->find(address);
    if (!block) return {};
    const std::lock_guard guard(owners_lock_);
    const auto owner = owners_.find(block->address);
    return Owned{block->address, block->bytes, owner != owners_.end() ? owner->second : context_};
}

std::uint64_t Card::create_handle(std::uint64_t bytes, const CUmemAllocationProp& properties,
                                  Failure& why) {
    if (!limit_memory(bytes)) {
        why = Failure::out_of_memory();
        return 0;
    }
    const std::uint64_t handle = engine().create(bytes, why);
    if (handle == 0) return 0;
    const std::lock_guard guard(owners_lock_);
    if (if_host_memory_allows([&] { handles_.insert_or_assign(handle, properties); })) {
        return handle;
    }
    std::uint64_t freed = 0;
    engine().release(handle, freed, why);
    why = Failure::out_of_memory();
    return 0;
}

std::optional<CUmemAllocationProp> Card::properties_of(std::uint64_t handle) const {
    const std::lock_guard guard(owners_lock_);
    const auto known = handles_.find(handle);
    if (known == handles_.end()) return {};
    return known->second;
}

void Card::free_all_of(CUcontext context) {
    for (;;) {
        std::uint64_t address = 0;
        {
            const std::lock_guard guard(owners_lock_);
            for (const auto& [begin, owner] : owners_) {
                if (owner == context) address = begin;
            }
        }
        Failure ignored;
        if (address == 0) return;
        free(address, ignored);
    }
}

void Card::look_at_graphs() {
    if (call_.cuDeviceGetGraphMemAttribute == nullptr) return;
    const SlowPathScope scope(call_, context_);
    cuuint64_t now = 0;
    const CUresult asked =
        call_.cuDeviceGetGraphMemAttribute(device_, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now);
    if (asked != CUDA_SUCCESS) return;
    note_unswappable(static_cast<std::int64_t>(now) - static_cast<std::int64_t>(graph_bytes_));
    graph_bytes_ = now;
}

bool Card::wait_for_work(CUcontext context) {
    const SlowPathScope scope(call_, context);
    return sync_.wait();
}

}  // namespace vramkit::share
