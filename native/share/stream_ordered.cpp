#include "share/stream_ordered.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/host_memory.h"
#include "base/listeners.h"
#include "base/scopes.h"
#include "share/log.h"
#include "share/virtual_memory.h"

namespace vramkit::share {
namespace {

// Memory that was unused for so long goes back at the next wait of the program.
constexpr std::uint64_t kDecayMilliseconds = 1000;
constexpr std::chrono::milliseconds kBetweenSteps{100};
// Of every address that cuMemAllocAsync gives.
constexpr std::uint64_t kAlignment = 512;

// The calls of the pools, on cards whose pools exist.
CUresult create_handle(CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp* properties, unsigned long long) {
    Failure why;
    Card* const card = Program::get().card(properties->location.id, why);
    return card != nullptr ? virtual_memory::create(*card, handle, bytes, *properties) : why.code;
}

CUresult release_handle(CUmemGenericAllocationHandle handle) {
    Card* const card = Program::get().card_of_handle(handle);
    return card != nullptr ? virtual_memory::release(*card, handle) : CUDA_ERROR_INVALID_VALUE;
}

CUresult map_handle(CUdeviceptr pointer, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long) {
    Card* const card = Program::get().card_of_handle(handle);
    return card != nullptr ? virtual_memory::map(*card, pointer, bytes, offset, handle)
                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult unmap_memory(CUdeviceptr pointer, size_t bytes) {
    Card* const card = Program::get().card_of_mapping(pointer, bytes);
    return card != nullptr ? virtual_memory::unmap(*card, pointer, bytes)
                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult set_access(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access,
                    size_t count) {
    Card* const card = Program::get().card_of_mapping(pointer, bytes);
    return card != nullptr ? virtual_memory::set_access(*card, pointer, bytes, access, count)
                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult memory_info(size_t* free, size_t* total) {
    Card* const card = Program::get().current_card();
    if (card == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *free = card->left();
    *total = card->limit();
    return CUDA_SUCCESS;
}

std::shared_ptr<Driver> driver_of_pools() {
    const Driver& real = *Program::get().driver();
    DriverTable calls = real.call();
    calls.cuMemCreate = &create_handle;
    calls.cuMemRelease = &release_handle;
    calls.cuMemMap = &map_handle;
    calls.cuMemUnmap = &unmap_memory;
    calls.cuMemSetAccess = &set_access;
    calls.cuMemGetInfo_v2 = &memory_info;
    return real.with_calls(calls);
}

CUresult error_of(const Failure& why, CUresult otherwise) {
    return why.code != CUDA_SUCCESS ? why.code : otherwise;
}

}  // namespace

StreamOrdered& StreamOrdered::get() {
    static StreamOrdered& made = *std::unique_ptr<StreamOrdered>(new StreamOrdered).release();
    return made;
}

StreamOrdered::StreamOrdered()
    : driver_(driver_of_pools()),
      clock_(reinterpret_cast<double (*)()>(driver_->symbol("simNow"))) {}

std::int64_t StreamOrdered::now() const {
    if (clock_ != nullptr) return static_cast<std::int64_t>(clock_());
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

pool::Pool* StreamOrdered::engine_of(CUdevice device) const {
    if (device < 0 || device >= kMostCards) return nullptr;
    return engines_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

std::shared_ptr<pool::Pool> StreamOrdered::open(Card& card) {
    pool::Config config;
    config.alignment = kAlignment;
    config.decay_ms = kDecayMilliseconds;
    // No thread of ours runs in the program: after_wait() does what it would do.
    config.background = false;
    Failure why;
    std::shared_ptr<pool::Pool> made;
    if (!if_host_memory_allows([&] {
            made = pool::Pool::open(driver_, card.device(), card.context(), config, why);
        })) {
        why = Failure::out_of_memory();
    }
    if (made == nullptr) {
        log("device %d: no pool for stream-ordered memory, which stays on the card: %s %s",
            card.device(), std::string(why.call).c_str(), why.message.c_str());
    }
    return made;
}

pool::Pool* StreamOrdered::opened(Card& card) {
    if (pool::Pool* const known = engine_of(card.device())) return known;
    const std::lock_guard guard(opening_);
    if (pool::Pool* const known = engine_of(card.device())) return known;
    std::shared_ptr<pool::Pool> made = open(card);
    if (made == nullptr) return nullptr;
    pool::Pool* const engine = made.get();
    // For ever: the program may call, and its threads end, to its very end.
    if (!if_host_memory_allows(
            [&] { std::make_unique<std::shared_ptr<pool::Pool>>(std::move(made)).release(); })) {
        return nullptr;
    }
    engines_[static_cast<std::size_t>(card.device())].store(engine, std::memory_order_release);
    any_.store(true, std::memory_order_release);
    return engine;
}

StreamOrdered::Place StreamOrdered::place_of(const CallId& call, CUstream stream) {
    Program& program = Program::get();
    const DriverTable& driver = program.call();
    Place place;
    place.stream.handle = call.stream(stream);
    const bool is_of_context =
        is_legacy(place.stream.handle) || place.stream.handle == VRAMKIT_STREAM_PER_THREAD;
    if (identify(driver, place.stream) != CUDA_SUCCESS) return place;
    // The pool is told before the program destroys one. The default stream of a thread goes without
    // a word.
    place.stream.durable = place.stream.handle != VRAMKIT_STREAM_PER_THREAD;
    place.captured = place.stream.capture != 0;
    CUcontext& context = place.context;
    const CUresult asked = is_of_context ? driver.cuCtxGetCurrent(&context)
                                         : driver.cuStreamGetCtx(place.stream.handle, &context);
    if (asked != CUDA_SUCCESS || context == nullptr) return place;
    program.each_card([&](Card& card) {
        if (card.context() == context) place.card = &card;
    });
    if (place.card == nullptr) {
        const SlowPathScope scope(driver, context);
        place.card = program.current_card();
    }
    if (place.card == nullptr || place.captured) return place;
    if (!place.card->keeps_handles()) {
        if (!told_.exchange(true)) {
            log("device %d: stream-ordered memory stays on the card, unless the mode is swap",
                place.card->device());
        }
    } else if (place.card->context() == context) {
        place.engine = opened(*place.card);
    } else if (!told_.exchange(true)) {
        log("device %d: stream-ordered memory of streams outside the primary context stays on the "
            "card",
            place.card->device());
    }
    return place;
}

// The driver's handle of it is asked for once.
ProgramPoolRef StreamOrdered::default_pool(CUdevice device) {
    if (device < 0 || device >= kMostCards) return nullptr;
    const auto index = static_cast<std::size_t>(device);
    {
        const std::lock_guard guard(lock_);
        if (defaults_[index] != nullptr) return defaults_[index];
    }
    const auto ask = driver_->call().cuDeviceGetDefaultMemPool;
    CUmemoryPool handle = nullptr;
    if (ask == nullptr || ask(&handle, device) != CUDA_SUCCESS) return nullptr;
    const std::lock_guard guard(lock_);
    if (defaults_[index] == nullptr) {
        if_host_memory_allows([&] {
            const auto made = std::make_shared<ProgramPool>(handle, device, true, 0);
            pools_[handle] = made;
            defaults_[index] = made;
        });
    }
    return defaults_[index];
}

ProgramPoolRef StreamOrdered::pool(CUmemoryPool handle) {
    const auto look = [&]() -> ProgramPoolRef {
        const std::lock_guard guard(lock_);
        const auto known = pools_.find(handle);
        return known != pools_.end() ? known->second : nullptr;
    };
    if (ProgramPoolRef known = look()) return known;
    // Programs choose what the default pool of a device keeps before they use it.
    int devices = 0;
    if (driver_->call().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return nullptr;
    for (CUdevice device = 0; device < devices; ++device) default_pool(device);
    return look();
}

ProgramPoolRef StreamOrdered::current_pool(CUdevice device) {
    {
        const std::lock_guard guard(lock_);
        const auto& chosen = current_[static_cast<std::size_t>(device)];
        if (chosen != nullptr) return chosen;
    }
    return default_pool(device);
}

void StreamOrdered::pool_made(CUmemoryPool handle, const CUmemPoolProps& properties) {
    const bool ours = properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                      properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
                      properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                      properties.usage == 0;
    const std::lock_guard guard(lock_);
    if_host_memory_allows([&] {
        pools_[handle] =
            std::make_shared<ProgramPool>(handle, properties.location.id, ours, properties.maxSize);
    });
}

// Its blocks live on until they are freed.
void StreamOrdered::pool_destroyed(CUmemoryPool handle) {
    const std::lock_guard guard(lock_);
    pools_.erase(handle);
    for (ProgramPoolRef& each : current_) {
        if (each != nullptr && each->handle == handle) each = nullptr;
    }
}

void StreamOrdered::pool_chosen(CUdevice device, CUmemoryPool handle) {
    if (device < 0 || device >= kMostCards) return;
    default_pool(device);  // may be what was chosen
    const std::lock_guard guard(lock_);
    if_host_memory_allows([&] {
        ProgramPoolRef& known = pools_[handle];
        // From another process.
        if (known == nullptr) known = std::make_shared<ProgramPool>(handle, device, false, 0);
        current_[static_cast<std::size_t>(device)] = known;
    });
}

void StreamOrdered::count(ProgramPool& pool, std::int64_t bytes) {
    pool.used += static_cast<std::uint64_t>(bytes);
    pool.used_high = std::max(pool.used_high, pool.used);
    pool.reserved_high = std::max(pool.reserved_high, pool.used);
}

CUresult StreamOrdered::allocate(const Place& place, const ProgramPoolRef& from,
                                 std::uint64_t bytes, CUdeviceptr* pointer) {
    const auto size = static_cast<std::int64_t>(bytes);
    {
        const std::lock_guard guard(lock_);
        const bool fits = from->most == 0 || bytes <= from->most - std::min(from->most, from->used);
        if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
        count(*from, size);
    }
    Failure why;
    std::uint64_t address = 0;
    const bool had_memory = if_host_memory_allows(
        [&] { address = place.engine->malloc(bytes, place.stream, true, why); });
    const std::lock_guard guard(lock_);
    if (address != 0 && if_host_memory_allows([&] { blocks_[address] = {bytes, from}; })) {
        *pointer = address;
        return CUDA_SUCCESS;
    }
    count(*from, -size);
    if (address != 0 || !had_memory) {
        if (address != 0) place.engine->free(address, std::nullopt, place.stream, why);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    log("%llu bytes refused: %s", static_cast<unsigned long long>(bytes), why.message.c_str());
    return error_of(why, CUDA_ERROR_OUT_OF_MEMORY);
}

std::optional<StreamOrdered::Block> StreamOrdered::find(std::uint64_t address) const {
    const std::lock_guard guard(lock_);
    const auto behind = blocks_.upper_bound(address);
    if (behind == blocks_.begin()) return {};
    const auto& [begin, used] = *std::prev(behind);
    if (address - begin >= used.bytes) return {};
    return Block{begin, used.bytes, used.pool->device, used.pool->handle};
}

// Of two that free a block one gets it.
StreamOrdered::Blocks::node_type StreamOrdered::take(std::uint64_t address) {
    const std::lock_guard guard(lock_);
    auto block = blocks_.extract(address);
    if (block) count(*block.mapped().pool, -static_cast<std::int64_t>(block.mapped().bytes));
    return block;
}

void StreamOrdered::put_back(Blocks::node_type block) {
    const std::lock_guard guard(lock_);
    count(*block.mapped().pool, static_cast<std::int64_t>(block.mapped().bytes));
    blocks_.insert(std::move(block));
}

std::optional<CUresult> StreamOrdered::free(std::uint64_t address, const StreamRef& stream) {
    auto block = take(address);
    if (!block) return {};
    pool::Pool* const engine = engine_of(block.mapped().pool->device);
    if (engine == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Failure why;
    bool done = false;
    if_host_memory_allows([&] { done = engine->free(address, std::nullopt, stream, why); });
    if (done) return CUDA_SUCCESS;
    put_back(std::move(block));
    return error_of(why, CUDA_ERROR_OUT_OF_MEMORY);
}

std::optional<CUresult> StreamOrdered::free_now(std::uint64_t address) {
    if (!any_.load(std::memory_order_acquire)) return {};
    const auto known = find(address);
    if (!known) return {};
    if (known->begin != address) return CUDA_ERROR_INVALID_VALUE;
    Program& program = Program::get();
    Failure why;
    Card* const card = program.card(known->device, why);
    if (card == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!card->wait_for_work(card->context())) return CUDA_ERROR_UNKNOWN;
    return free(address, legacy_stream());
}

StreamOrdered::Bytes StreamOrdered::bytes_of(ProgramPool& pool) {
    const pool::Pool* const engine = engine_of(pool.device);
    const std::uint64_t all = engine != nullptr ? engine->reserved_bytes() : 0;
    const std::lock_guard guard(lock_);
    // What is in use belongs to its pool; all that is kept unused, to the default one.
    std::uint64_t reserved = pool.used;
    if (&pool == defaults_[static_cast<std::size_t>(pool.device)].get()) {
        std::uint64_t others = 0;
        for (const auto& [handle, each] : pools_) {
            if (each->device == pool.device && each.get() != &pool) others += each->used;
        }
        reserved = std::max(reserved, all - std::min(all, others));
    }
    pool.reserved_high = std::max(pool.reserved_high, reserved);
    return {pool.used, pool.used_high, reserved, pool.reserved_high};
}

void StreamOrdered::reset_high(ProgramPool& pool, CUmemPool_attribute which) {
    const Bytes bytes = bytes_of(pool);
    const std::lock_guard guard(lock_);
    if (which == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool.used_high = pool.used;
    if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool.reserved_high = bytes.reserved;
}

void StreamOrdered::keep(ProgramPool& pool, std::uint64_t bytes) {
    const std::lock_guard guard(lock_);
    pool.threshold = bytes;
}

void StreamOrdered::trim(ProgramPool& pool, std::uint64_t bytes) {
    pool::Pool* const engine = engine_of(pool.device);
    if (engine == nullptr || engine->reserved_bytes() <= bytes) return;
    if_host_memory_allows([&] { engine->trim(false); });
}

bool StreamOrdered::give_back(Card& card) {
    pool::Pool* const engine = engine_of(card.device());
    std::uint64_t released = 0;
    if (engine == nullptr) return false;
    if_host_memory_allows([&] {
        released = engine->trim(false);
        if (released == 0) released = engine->trim(true);
    });
    return released > 0;
}

void StreamOrdered::after_wait() {
    if (!any_.load(std::memory_order_acquire)) return;
    const std::int64_t time = now();
    std::int64_t due = next_step_.load(std::memory_order_relaxed);
    const std::int64_t next = time + std::chrono::nanoseconds(kBetweenSteps).count();
    if (time < due || !next_step_.compare_exchange_strong(due, next)) return;
    for (CUdevice device = 0; device < kMostCards; ++device) {
        pool::Pool* const engine = engine_of(device);
        if (engine == nullptr) continue;
        std::uint64_t kept = 0;
        {
            const std::lock_guard guard(lock_);
            for (const auto& [handle, each] : pools_) {
                if (each->device != device) continue;
                kept = each->threshold > UINT64_MAX - kept ? UINT64_MAX : kept + each->threshold;
            }
        }
        if (engine->reserved_bytes() <= kept) continue;
        if_host_memory_allows([&] { engine->step(); });
    }
}

void StreamOrdered::stream_ending(CUstream stream) {
    if (!any_.load(std::memory_order_acquire)) return;
    StreamRef ref{.handle = stream};
    if (is_legacy(stream) || identify(driver_->call(), ref) != CUDA_SUCCESS || ref.capture != 0) {
        return;
    }
    if_host_memory_allows([&] { announce_stream_closing(driver_->call(), ref.id, stream); });
}

void StreamOrdered::primary_ended(CUdevice device) {
    if (engine_of(device) == nullptr) return;
    for (;;) {
        std::uint64_t address = 0;
        {
            const std::lock_guard guard(lock_);
            const auto known = std::find_if(blocks_.begin(), blocks_.end(), [=](const auto& each) {
                return each.second.pool->device == device;
            });
            if (known == blocks_.end()) return;
            address = known->first;
        }
        if (free(address, legacy_stream()) != CUDA_SUCCESS) return;
    }
}

void StreamOrdered::device_resetting(CUdevice device) {
    if (device < 0 || device >= kMostCards) return;
    pool::Pool* const engine = engines_[static_cast<std::size_t>(device)].exchange(nullptr);
    if (engine == nullptr) return;
    if_host_memory_allows([&] { engine->driver_reset(); });
    const std::lock_guard guard(lock_);
    std::erase_if(blocks_, [=](const auto& each) { return each.second.pool->device == device; });
    std::erase_if(pools_, [=](const auto& each) { return each.second->device == device; });
    defaults_[static_cast<std::size_t>(device)] = nullptr;
    current_[static_cast<std::size_t>(device)] = nullptr;
}

}  // namespace vramkit::share
