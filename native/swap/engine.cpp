// Opening, allocating and freeing.
#include "swap/engine.h"

#include <algorithm>

#include "base/host_memory.h"
#include "base/scopes.h"
#include "swap/each_chunk.h"

namespace vramkit::swap {
namespace {

constexpr std::uint64_t kTimesTheCard = 4;
// Allocations from here on are zeroed when they are first resident, which costs a wait and 15 us
// for 64 MiB on an H200. Smaller ones are mostly written soon after.
constexpr std::uint64_t kZeroedFrom = std::uint64_t{16} << 20;

bool are_valid(const Settings& settings, Failure& why) {
    const auto is_pages = [](std::uint64_t bytes) { return bytes > 0 && bytes % kPage == 0; };
    if (is_pages(settings.chunk_bytes) && is_pages(settings.host.slab_bytes)) return true;
    why = Failure::bad_value("chunk_bytes is " + std::to_string(settings.chunk_bytes) +
                             " and host.slab_bytes is " + std::to_string(settings.host.slab_bytes) +
                             "; both must be multiples of 2 MiB, and not 0");
    return false;
}

std::size_t index_of(State state) { return static_cast<std::size_t>(state); }

}  // namespace

Failure Engine::no_host_memory() {
    Failure why = Failure::out_of_memory();
    why.message = "the host is out of memory";
    return why;
}

void Engine::explain(Failure& why, const char* what, std::uint64_t done, std::uint64_t wanted) {
    const auto mebibytes = [](std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
    if (!why.message.empty()) why.message += ". ";
    why.message += std::string(what) + " stopped after " + mebibytes(done) + " of " +
                   mebibytes(wanted) + ". Nothing is lost: the rest is where it was";
}

std::unique_ptr<Engine> Engine::open(const DriverTable& call, CUcontext context, int device,
                                     const Settings& settings, Failure& why) {
    if (!are_valid(settings, why)) return nullptr;
    std::unique_ptr<Engine> made(new Engine(call, context, device, settings));
    return made->make(why) ? std::move(made) : nullptr;
}

Engine::Engine(const DriverTable& call, CUcontext context, int device, const Settings& settings)
    : call_(call),
      context_(context),
      device_(device),
      settings_(settings),
      limit_(settings.limit),
      card_(call, device),
      host_(call, settings.host) {}

bool Engine::make(Failure& why) {
    const SlowPathScope scope(call_, context_);
    address_bytes_ = settings_.address_bytes;
    if (address_bytes_ == 0) {
        size_t total = 0;
        if (failed(call_.cuDeviceTotalMem_v2(&total, device_), "cuDeviceTotalMem", why)) {
            return false;
        }
        address_bytes_ = total * kTimesTheCard;
    }
    address_bytes_ = round_up(address_bytes_, kPage);
    if (failed(call_.cuMemAddressReserve(&addresses_, address_bytes_, kPage, 0, 0),
               "cuMemAddressReserve", why)) {
        addresses_ = 0;
        return false;
    }
    space_.emplace(addresses_, address_bytes_, settings_.chunk_bytes);
    mover_ = Mover::open(call_, why);
    if (mover_ == nullptr) return false;
    if (settings_.hash != nullptr) {
        hasher_ = Hasher::open(call_, settings_.hash, why);
        if (hasher_ == nullptr) return false;
        // Else the first swap would compute it.
        if_host_memory_allows([&] { zeros_.of(settings_.chunk_bytes); });
    }
    return true;
}

Engine::~Engine() {
    const SlowPathScope scope(call_, context_);
    hasher_.reset();
    mover_.reset();  // waits for its copies
    if (space_) {
        Failure ignored;
        for (auto& [address, chunk] : space_->chunks()) {
            card_.unback(chunk, ignored);
            host_.give(chunk.copy);
        }
    }
    if (addresses_ != 0) call_.cuMemAddressFree(addresses_, address_bytes_);
    host_.trim();
}

std::uint64_t Engine::allocate(std::uint64_t bytes, Failure& why) {
    if (bytes == 0 || bytes > kLargestRequest) {
        why = Failure::bad_value("an allocation of " + std::to_string(bytes) +
                                 " bytes; it must have 1 byte to 1 TiB");
        return 0;
    }
    const std::lock_guard guard(lock_);
    return allocate_locked(bytes, why);
}

std::uint64_t Engine::allocate_locked(std::uint64_t bytes, Failure& why) {
    std::uint64_t address = 0;
    std::vector<Chunk*> made;
    if (!if_host_memory_allows([&] { address = space_->allocate(bytes, made); })) {
        why = no_host_memory();
        return 0;
    }
    if (address == 0) {
        note_shortage("cuMemAddressReserve", why);
        why.message = "no " + std::to_string(bytes) + " addresses in a row are left of " +
                      std::to_string(address_bytes_ >> 20) + " MiB";
        return 0;
    }
    const std::uint64_t limit = limit_.load(std::memory_order_relaxed);
    if (limit != 0 && !made.empty() && space_->chunk_bytes() > limit) {
        space_->free(address);
        for (Chunk* chunk : made) space_->remove(*chunk);
        why = Failure::out_of_memory();
        why.message = std::to_string(bytes) + " bytes more are over the limit of " +
                      std::to_string(limit >> 20) + " MiB, of which " +
                      std::to_string(space_->chunk_bytes() >> 20) + " MiB are in use";
        return 0;
    }
    for (Chunk* chunk : made) {
        chunk->zero = hasher_ != nullptr && bytes >= kZeroedFrom;
        bytes_[index_of(State::unbacked)] += chunk->bytes;
    }
    if (!made.empty()) coming_is_known_ = false;
    return address;
}

bool Engine::free(std::uint64_t address, std::uint64_t& freed, Failure& why) {
    freed = 0;
    const std::lock_guard guard(lock_);
    bool found = false;
    // The home of a handle is no allocation.
    const auto free = [&] { found = handles_.find(address) == nullptr && space_->free(address); };
    if (!if_host_memory_allows(free)) {
        why = no_host_memory();
        return false;
    }
    if (!found) {
        why = Failure::bad_value("no allocation begins at " + std::to_string(address));
        return false;
    }
    const SlowPathScope scope(call_, context_);
    // What cannot be cleaned up now is so with the next call.
    if_host_memory_allows([&] { freed = clean(true); });
    return true;
}

std::optional<Block> Engine::find(std::uint64_t address) const {
    const std::lock_guard guard(lock_);
    const std::optional<Block> block = space_->find(address);
    return block && handles_.find(block->address) == nullptr ? block : std::nullopt;
}

std::vector<Chunk*> Engine::chunks_in(std::uint64_t address, std::uint64_t bytes) {
    std::vector<Chunk*> found;
    each_chunk_in(address, bytes, [&](Chunk& chunk) { found.push_back(&chunk); });
    std::sort(found.begin(), found.end(),
              [](const Chunk* one, const Chunk* other) { return one->address < other->address; });
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
}

bool Engine::pin(std::uint64_t address, Failure& why) {
    const std::lock_guard guard(lock_);
    const Mapping* const mapping = handles_.around(address);
    const auto block = space_->find(mapping == nullptr ? address : mapping->handle);
    if (!block) {
        why = Failure::bad_value("no allocation or handle is at " + std::to_string(address));
        return false;
    }
    space_->each_chunk_in(block->address, block->bytes, [this](Chunk& chunk) {
        if (chunk.pinned) return;
        chunk.pinned = true;
        if (chunk.state == State::resident) pinned_ += chunk.bytes;
    });
    return true;
}

void Engine::unpin(Chunk& chunk) {
    if (chunk.pinned && chunk.state == State::resident) pinned_ -= chunk.bytes;
    chunk.pinned = false;
}

bool Engine::prepare_host(std::uint64_t bytes, Failure& why) {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    return host_.prepare(bytes, why);
}

void Engine::trim_host() {
    const std::lock_guard guard(lock_);
    const SlowPathScope scope(call_, context_);
    host_.trim();
}

Usage Engine::usage() const {
    const auto bytes = [this](State state) {
        return bytes_[index_of(state)].load(std::memory_order_relaxed);
    };
    return {bytes(State::unbacked),
            bytes(State::resident),
            bytes(State::arriving),
            bytes(State::swapped),
            pinned_.load(std::memory_order_relaxed),
            card_.unreleased()};
}

std::uint64_t Engine::bytes_to_come() const {
    const Usage now = usage();
    return now.unbacked + now.swapped;
}

Counters Engine::counters() const {
    const std::lock_guard guard(lock_);
    Counters now = counters_;
    now.copied_out_bytes = traffic().out;
    now.copied_in_bytes = traffic().in;
    now.waits = mover_->waits() + (hasher_ ? hasher_->waits() : 0);
    now.allocated = space_->allocated();
    now.card_bytes = card_.used();
    now.host_bytes = host_.held();
    now.host_used = host_.used();
    return now;
}

std::string Engine::broken_invariant() const {
    const std::lock_guard guard(lock_);
    std::array<std::uint64_t, 4> bytes{};
    std::uint64_t card = 0, copies = 0, pinned = 0;
    for (const auto& [address, chunk] : space_->chunks()) {
        bytes[index_of(chunk.state)] += chunk.bytes;
        if (chunk.uses_card()) card += chunk.bytes;
        copies += chunk.copy.bytes;
        if (chunk.pinned && chunk.state == State::resident) pinned += chunk.bytes;
    }
    for (std::size_t state = 0; state < bytes.size(); ++state) {
        if (bytes[state] != bytes_[state]) return "bytes by state are counted wrong";
    }
    if (card + card_.unreleased() > card_.used()) return "bytes of the card are counted wrong";
    if (copies != host_.used()) return "host memory is counted wrong";
    if (pinned != pinned_) return "pinned bytes are counted wrong";
    const std::string broken = broken_handles();
    return broken.empty() ? space_->broken_invariant() : broken;
}

void Engine::set_state(Chunk& chunk, State state) {
    bytes_[index_of(chunk.state)] -= chunk.bytes;
    bytes_[index_of(state)] += chunk.bytes;
    if (chunk.pinned && chunk.state == State::resident) pinned_ -= chunk.bytes;
    if (chunk.pinned && state == State::resident) pinned_ += chunk.bytes;
    chunk.state = state;
    if (!chunk.is_on_card()) coming_is_known_ = false;
}

bool Engine::settle(Failure& why) {
    return mover_->settle(why) && (hasher_ == nullptr || hasher_->settle(why));
}

std::uint64_t Engine::clean(bool keep) {
    const std::uint64_t before = card_.used();
    for (Chunk* chunk : space_->unused()) {
        if (keep && chunk->shared && chunk->is_on_card()) {
            keep = false;
            unpin(*chunk);
        } else {
            discard(*chunk);
        }
    }
    card_.release_again();
    return before - card_.used();
}

std::uint64_t Engine::clear_leftovers() {
    const std::uint64_t before = card_.used();
    for (auto& [address, chunk] : space_->chunks()) {
        Failure ignored;
        if (!chunk.is_on_card()) card_.unback(chunk, ignored);
    }
    return before - card_.used();
}

// False: it stays, unused, for the next time.
bool Engine::discard(Chunk& chunk) {
    Failure ignored;
    if (!settle(ignored)) return false;
    if (chunk.state == State::arriving && !finish_arriving(ignored)) return false;
    if (!card_.unback(chunk, ignored)) return false;
    host_.give(chunk.copy);
    unpin(chunk);
    bytes_[index_of(chunk.state)] -= chunk.bytes;
    coming_is_known_ = false;
    space_->remove(chunk);
    return true;
}

}  // namespace vramkit::swap
