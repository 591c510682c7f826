// Chunks by the calls of virtual memory management: create, map, set access; and back.
#include "pool/range.h"

#include <algorithm>

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kTimesTheCard = 4;

std::uint64_t round_to_pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

CUmemAllocationProp properties_on(int device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return properties;
}

bool failed(CUresult result, const char* call, Failure& why) {
    if (result == CUDA_SUCCESS) return false;
    why.kind =
        result == CUDA_ERROR_OUT_OF_MEMORY ? Failure::Kind::out_of_memory : Failure::Kind::driver;
    why.code = result;
    why.call = call;
    return true;
}

}  // namespace

std::unique_ptr<Range> Range::reserve(const DriverTable& call, int device, std::uint64_t card_bytes,
                                      Failure& why) {
    std::unique_ptr<Range> range(new Range(call, device));
    const std::uint64_t bytes = round_to_pages(card_bytes * kTimesTheCard);
    CUdeviceptr base = 0;
    if (failed(call.cuMemAddressReserve(&base, bytes, kPage, 0, 0), "cuMemAddressReserve", why)) {
        return nullptr;
    }
    range->base_ = base;
    range->bytes_ = bytes;
    range->pages_ = std::make_unique<std::atomic<Chunk*>[]>(bytes / kPage);
    range->holes_.emplace(base, base + bytes);
    return range;
}

void Range::release() {
    for (const CUmemGenericAllocationHandle handle : unreleased_) call_.cuMemRelease(handle);
    unreleased_.clear();
    if (const std::uint64_t bytes = bytes_.exchange(0)) call_.cuMemAddressFree(base_, bytes);
}

std::uint64_t Range::take(std::uint64_t bytes) {
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
        if (hole->second - hole->first < bytes) continue;
        const std::uint64_t address = hole->first, end = hole->second;
        holes_.erase(hole);
        if (address + bytes < end) holes_.emplace(address + bytes, end);
        return address;
    }
    return 0;
}

void Range::give(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t end = address + bytes;
    auto after = holes_.lower_bound(address);
    if (after != holes_.end() && after->first == end) {
        end = after->second;
        after = holes_.erase(after);
    }
    if (after != holes_.begin() && std::prev(after)->second == address) {
        std::prev(after)->second = end;
    } else {
        holes_.emplace_hint(after, address, end);
    }
}

std::unique_ptr<Chunk> Range::map(ClassIndex index, std::uint32_t count, Failure& why) {
    auto chunk = std::make_unique<Chunk>();
    chunk->index = index;
    chunk->block_bytes = class_bytes(index);
    chunk->bytes = round_to_pages(chunk->block_bytes * count);
    // A slab takes what fits: pages are whole, blocks need not fill them.
    chunk->count = static_cast<std::uint32_t>(chunk->bytes / chunk->block_bytes);
    chunk->blocks = std::make_unique<Block[]>(chunk->count);
    chunk->address = take(chunk->bytes);
    if (chunk->address == 0) {
        why.kind = Failure::Kind::out_of_memory;
        why.code = CUDA_ERROR_OUT_OF_MEMORY;
        why.call = "addresses of the pool";
        return nullptr;
    }
    const CUmemAllocationProp properties = properties_on(device_);
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (failed(call_.cuMemCreate(&chunk->handle, chunk->bytes, &properties, 0), "cuMemCreate",
               why)) {
        give(chunk->address, chunk->bytes);
        return nullptr;
    }
    if (failed(call_.cuMemMap(chunk->address, chunk->bytes, 0, chunk->handle, 0), "cuMemMap",
               why)) {
        release(chunk->handle);
        give(chunk->address, chunk->bytes);
        return nullptr;
    }
    if (failed(call_.cuMemSetAccess(chunk->address, chunk->bytes, &access, 1), "cuMemSetAccess",
               why)) {
        // Mapped memory without rights is of no use; if it cannot be unmapped its addresses are
        // lost.
        if (call_.cuMemUnmap(chunk->address, chunk->bytes) == CUDA_SUCCESS) {
            give(chunk->address, chunk->bytes);
        }
        release(chunk->handle);
        return nullptr;
    }
    set_pages(*chunk, chunk.get());
    return chunk;
}

void Range::set_pages(const Chunk& chunk, Chunk* owner) {
    for (std::uint64_t at = 0; at < chunk.bytes; at += kPage) {
        pages_[(chunk.address - base_ + at) / kPage].store(owner, std::memory_order_release);
    }
}

bool Range::unmap(Chunk& chunk) {
    if (call_.cuMemUnmap(chunk.address, chunk.bytes) != CUDA_SUCCESS) return false;
    set_pages(chunk, nullptr);
    release(chunk.handle);
    give(chunk.address, chunk.bytes);
    return true;
}

void Range::release(CUmemGenericAllocationHandle handle) {
    unreleased_.push_back(handle);
    std::erase_if(unreleased_, [&](CUmemGenericAllocationHandle each) {
        return call_.cuMemRelease(each) == CUDA_SUCCESS;
    });
}

}  // namespace vramkit::pool
