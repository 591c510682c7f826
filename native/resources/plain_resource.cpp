// The table of live blocks, and the point of each free.
#include "resources/plain_resource.h"

#include <utility>

#include "base/scopes.h"

namespace vramkit::resources {
namespace {

bool no(Failure& why, Failure::Kind kind, std::string message) {
    why.kind = kind;
    why.message = std::move(message);
    return false;
}

}  // namespace

PlainResource::PlainResource(std::shared_ptr<Driver> driver, CUcontext context, std::string name)
    : driver_(std::move(driver)), context_(context), name_(std::move(name)) {
    add_listener(id_, *this);
}

PlainResource::~PlainResource() {
    if (!forked()) remove_listener(id_);
}

std::uint64_t PlainResource::malloc(std::uint64_t bytes, const StreamRef& stream, Failure& why) {
    if (bytes == 0 || bytes > kLargestRequest) {
        no(why, Failure::Kind::bad_value,
           "a block has 1 to " + std::to_string(kLargestRequest) + " bytes; asked for were " +
               std::to_string(bytes));
        return 0;
    }
    if (!is_open(why)) return 0;
    const SlowPathScope scope(call(), context_);
    if (!is_usable(stream, why)) return 0;
    const std::uint64_t address = take(bytes, stream, why);
    if (address == 0) return 0;
    Shard& shard = shard_of(address);
    const std::lock_guard guard(shard.lock);
    shard.add(address, {bytes, stream});
    return address;
}

bool PlainResource::free(std::uint64_t address, std::optional<std::uint64_t> bytes,
                         const std::optional<StreamRef>& stream, Failure& why) {
    if (!is_open(why)) return false;
    const SlowPathScope scope(call(), context_);
    if (stream && !is_usable(*stream, why)) return false;
    Block block;
    Shard& shard = shard_of(address);
    {
        const std::lock_guard guard(shard.lock);
        const auto found = shard.blocks.find(address);
        if (found == shard.blocks.end()) {
            return no(why, Failure::Kind::bad_value,
                      "the pointer is of no block that this " + name_ +
                          " has in use: freed twice, inside a block, or not of this " + name_);
        }
        block = found->second;
        if (bytes && *bytes != block.bytes) {
            return no(why, Failure::Kind::bad_value,
                      "the block has " + std::to_string(block.bytes) + " bytes, not " +
                          std::to_string(*bytes));
        }
        shard.blocks.erase(found);
        shard.bytes -= block.bytes;
    }
    StreamRef at = stream.value_or(block.stream);
    if ((stream || point_of_free(block, at, why)) && give(address, block, at, why)) return true;
    const std::lock_guard guard(shard.lock);
    shard.add(address, block);
    return false;
}

// The stream of the allocation. If that has ended, or is another thread's default stream: the
// legacy default stream, behind the work of the other.
bool PlainResource::point_of_free(const Block& block, StreamRef& at, Failure& why) {
    CUevent end = nullptr;
    has_ended(block.stream.id, end);
    if (can_name(block.stream)) return true;
    at = legacy_stream();
    const CUresult waited =
        end != nullptr ? call().cuStreamWaitEvent(at.handle, end, 0) : call().cuCtxSynchronize();
    return waited == CUDA_SUCCESS ||
           refuse(waited, end != nullptr ? "cuStreamWaitEvent" : "cuCtxSynchronize", 0, why);
}

bool PlainResource::has_ended(std::uint64_t id, CUevent& end) {
    if (!any_ended_.load(std::memory_order_acquire)) return false;
    const std::lock_guard guard(ended_lock_);
    const auto found = ended_.find(id);
    if (found == ended_.end()) return false;
    end = found->second;
    return true;
}

bool PlainResource::can_name(const StreamRef& stream) {
    CUevent end = nullptr;
    if (has_ended(stream.id, end)) return false;
    if (stream.handle != VRAMKIT_STREAM_PER_THREAD) return true;
    unsigned long long id = 0;
    return call().cuStreamGetId(stream.handle, &id) == CUDA_SUCCESS && id == stream.id;
}

// The bindings know the device of our own streams; a foreign stream may be of any context.
bool PlainResource::is_usable(const StreamRef& stream, Failure& why) {
    if (stream.durable) return true;
    CUcontext context = nullptr;
    const CUresult found = call().cuStreamGetCtx(stream.handle, &context);
    if (found != CUDA_SUCCESS) return refuse(found, "cuStreamGetCtx", 0, why);
    if (context == context_) return true;
    return no(why, Failure::Kind::bad_value, "the stream is of another context than the " + name_);
}

// The fork first: in a child, locks may be held by threads that do not exist there.
bool PlainResource::is_open(Failure& why) const {
    if (forked()) {
        why = Failure::forked("the " + name_);
    } else if (closed()) {
        why = Failure::closed("the " + name_);
    } else {
        return true;
    }
    return false;
}

bool PlainResource::close(Failure& why) {
    if (forked()) {
        why = Failure::forked("the " + name_);
        return false;
    }
    if (closed()) return true;
    if (const std::uint64_t blocks = live_blocks(); blocks != 0) {
        return no(why, Failure::Kind::bad_value,
                  "the " + name_ + " has " + std::to_string(blocks) + " blocks in use (" +
                      std::to_string(live_bytes()) + " bytes): free them before close()");
    }
    end();
    return true;
}

void PlainResource::end() {
    if (forked() || closed_.exchange(true)) return;
    const SlowPathScope scope(call(), context_);
    call().cuCtxSynchronize();
    for (Shard& shard : shards_) {
        const std::lock_guard guard(shard.lock);
        Failure ignored;
        for (const auto& [address, block] : shard.blocks) {
            give(address, block, legacy_stream(), ignored);
        }
        shard.blocks.clear();
        shard.bytes = 0;
    }
    give_back_everything();
    const std::lock_guard guard(ended_lock_);
    for (const auto& [id, event] : ended_) {
        if (event != nullptr) call().cuEventDestroy_v2(event);
    }
    ended_.clear();
}

void PlainResource::driver_reset() {
    closed_.store(true);
    const std::lock_guard guard(ended_lock_);
    ended_.clear();
}

std::uint64_t PlainResource::live_blocks() const {
    std::uint64_t sum = 0;
    for (const Shard& shard : shards_) {
        const std::lock_guard guard(shard.lock);
        sum += shard.blocks.size();
    }
    return sum;
}

std::uint64_t PlainResource::live_bytes() const {
    std::uint64_t sum = 0;
    for (const Shard& shard : shards_) {
        const std::lock_guard guard(shard.lock);
        sum += shard.bytes;
    }
    return sum;
}

void PlainResource::stream_closing(std::uint64_t id, CUstream handle) {
    if (closed() || !has_blocks_of(id)) return;
    const SlowPathScope scope(call(), context_);
    CUevent event = nullptr;
    if (call().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event = nullptr;
    } else if (call().cuEventRecord(event, handle) != CUDA_SUCCESS) {
        call().cuEventDestroy_v2(event);
        event = nullptr;
    }
    const std::lock_guard guard(ended_lock_);
    ended_.emplace(id, event);
    any_ended_.store(true, std::memory_order_release);
}

bool PlainResource::has_blocks_of(std::uint64_t stream) const {
    for (const Shard& shard : shards_) {
        const std::lock_guard guard(shard.lock);
        for (const auto& [address, block] : shard.blocks) {
            if (block.stream.id == stream) return true;
        }
    }
    return false;
}

bool PlainResource::wait_on_gpu(CUstream later, CUstream earlier, Failure& why) {
    CUevent event = nullptr;
    const CUresult made = call().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (made != CUDA_SUCCESS) return refuse(made, "cuEventCreate", 0, why);
    const char* symbol = "cuEventRecord";
    CUresult done = call().cuEventRecord(event, earlier);
    if (done == CUDA_SUCCESS) {
        symbol = "cuStreamWaitEvent";
        done = call().cuStreamWaitEvent(later, event, 0);
    }
    call().cuEventDestroy_v2(event);
    return done == CUDA_SUCCESS || refuse(done, symbol, 0, why);
}

bool PlainResource::refuse(CUresult code, const char* symbol, std::uint64_t bytes, Failure& why) {
    if (code == CUDA_ERROR_OUT_OF_MEMORY && bytes != 0) return out_of_memory(bytes, symbol, why);
    why.kind = Failure::Kind::driver;
    why.code = code;
    why.call = symbol;
    return false;
}

bool PlainResource::out_of_memory(std::uint64_t bytes, const std::string& what, Failure& why) {
    size_t free = 0, total = 0;
    call().cuMemGetInfo_v2(&free, &total);
    why.code = CUDA_ERROR_OUT_OF_MEMORY;
    return no(why, Failure::Kind::out_of_memory,
              "out of device memory: asked for " + std::to_string(bytes) + " bytes; " + what +
                  ". The " + name_ + " has " + std::to_string(live_bytes()) +
                  " bytes in use; the card has " + std::to_string(free) + " of " +
                  std::to_string(total) + " free.");
}

}  // namespace vramkit::resources
