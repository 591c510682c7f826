// Memory management on the host's clock: allocation, pinning, virtual memory, and a swap of them.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "objects.h"
#include "samples.h"

namespace bench::memory {

inline constexpr std::size_t kSwapped = GiB;
inline constexpr std::size_t kChunk = 64 * MiB;
inline constexpr std::size_t kChunks = kSwapped / kChunk;
inline constexpr std::size_t kPinned = 256 * MiB;

class AddressRange {
  public:
    AddressRange(Gpu& gpu, std::size_t bytes) : gpu_(gpu), bytes_(bytes) {
        GPU_CALL(gpu, cuMemAddressReserve, &address_, bytes, 0, 0, 0);
    }
    AddressRange(const AddressRange&) = delete;
    AddressRange& operator=(const AddressRange&) = delete;
    ~AddressRange() {
        gpu_.note(gpu_.call().cuMemAddressFree(address_, bytes_), "cuMemAddressFree");
    }
    operator CUdeviceptr() const { return address_; }

  private:
    Gpu& gpu_;
    std::size_t bytes_;
    CUdeviceptr address_ = 0;
};

inline CUmemGenericAllocationHandle create(Gpu& gpu, std::size_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device()};
    CUmemGenericAllocationHandle handle = 0;
    GPU_CALL(gpu, cuMemCreate, &handle, bytes, &properties, 0);
    return handle;
}

inline void set_access(Gpu& gpu, CUdeviceptr address, std::size_t bytes) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device()};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    GPU_CALL(gpu, cuMemSetAccess, address, bytes, &access, 1);
}

// One program's gigabyte of device memory in chunks, moved out to pinned memory and in again.
class Swap {
  public:
    explicit Swap(Gpu& gpu)
        : gpu_(gpu),
          range_(gpu, kSwapped),
          host_(static_cast<char*>(gpu.pinned(kSwapped))),
          stream_(gpu) {
        for (std::size_t i = 0; i < kChunks; ++i)
            landed_.emplace_back(gpu, CU_EVENT_DISABLE_TIMING);
    }

    // Copies run ahead; each chunk is given back once its bytes have landed.
    double out() {
        const double start = gpu_.now();
        for (std::size_t i = 0; i < kChunks; ++i) {
            GPU_CALL(gpu_, cuMemcpyDtoHAsync_v2, host_ + i * kChunk, range_ + i * kChunk, kChunk,
                     stream_);
            landed_[i].record(stream_);
        }
        for (std::size_t i = 0; i < kChunks; ++i) {
            landed_[i].synchronize();
            GPU_CALL(gpu_, cuMemUnmap, range_ + i * kChunk, kChunk);
            GPU_CALL(gpu_, cuMemRelease, handles_[i]);
        }
        return (gpu_.now() - start) / 1e3;
    }

    double in() {
        const double start = gpu_.now();
        for (std::size_t i = 0; i < kChunks; ++i) {
            const CUdeviceptr address = range_ + i * kChunk;
            handles_[i] = create(gpu_, kChunk);
            GPU_CALL(gpu_, cuMemMap, address, kChunk, 0, handles_[i], 0);
            set_access(gpu_, address, kChunk);
            GPU_CALL(gpu_, cuMemcpyHtoDAsync_v2, address, host_ + i * kChunk, kChunk, stream_);
        }
        stream_.synchronize();
        return (gpu_.now() - start) / 1e3;
    }

  private:
    Gpu& gpu_;
    AddressRange range_;
    char* host_;
    Stream stream_;
    std::vector<Event> landed_;
    std::array<CUmemGenericAllocationHandle, kChunks> handles_{};
};

inline void swap_out(Gpu& gpu, Samples& samples) {
    Swap swap(gpu);
    samples.repeat([&] {
        swap.in();
        return swap.out();
    });
}

inline void swap_in(Gpu& gpu, Samples& samples) {
    Swap swap(gpu);
    samples.repeat([&] {
        const double time = swap.in();
        swap.out();
        return time;
    });
}

inline void pin_by_driver(Gpu& gpu, Samples& samples) {
    samples.repeat([&] {
        void* pointer = nullptr;
        const double start = gpu.now();
        GPU_CALL(gpu, cuMemHostAlloc, &pointer, kPinned, VRAMKIT_MEMHOSTALLOC_PORTABLE);
        const double time = gpu.now() - start;
        GPU_CALL(gpu, cuMemFreeHost, pointer);
        return time / 1e3;
    });
}

inline void pin_by_register(Gpu& gpu, Samples& samples) {
    samples.repeat([&] {
        HostPages pages(kPinned);
        const double start = gpu.now();
        GPU_CALL(gpu, cuMemHostRegister_v2, pages.data(), kPinned,
                 VRAMKIT_MEMHOSTREGISTER_PORTABLE);
        const double time = gpu.now() - start;
        GPU_CALL(gpu, cuMemHostUnregister, pages.data());
        return time / 1e3;
    });
}

enum class Half { allocate, free };

// Pairs of an allocation and its release, one block alive at a time; the mean of one half of them.
template <std::size_t bytes, Half half>
void allocate(Gpu& gpu, Samples& samples) {
    constexpr int pairs = bytes >= GiB ? 4 : 16;
    samples.repeat([&] {
        double time = 0;
        for (int i = 0; i < pairs; ++i) {
            CUdeviceptr address = 0;
            const double start = gpu.now();
            GPU_CALL(gpu, cuMemAlloc_v2, &address, bytes);
            const double allocated = gpu.now();
            GPU_CALL(gpu, cuMemFree_v2, address);
            time += half == Half::free ? gpu.now() - allocated : allocated - start;
        }
        return time / pairs / 1e3;
    });
}

enum class Step { create, map, set_access, unmap, release };

// The whole life of one chunk, of which one step is measured; the mean of a few lives.
template <std::size_t bytes, Step step>
void virtual_step(Gpu& gpu, Samples& samples) {
    constexpr int lives = 8;
    AddressRange range(gpu, bytes);
    samples.repeat([&] {
        double time = 0;
        const auto timed = [&](Step which, auto&& action) {
            const double start = gpu.now();
            action();
            if (which == step) time += gpu.now() - start;
        };
        for (int i = 0; i < lives; ++i) {
            CUmemGenericAllocationHandle handle = 0;
            timed(Step::create, [&] { handle = create(gpu, bytes); });
            timed(Step::map, [&] { GPU_CALL(gpu, cuMemMap, range, bytes, 0, handle, 0); });
            timed(Step::set_access, [&] { set_access(gpu, range, bytes); });
            timed(Step::unmap, [&] { GPU_CALL(gpu, cuMemUnmap, range, bytes); });
            timed(Step::release, [&] { GPU_CALL(gpu, cuMemRelease, handle); });
        }
        return time / lives / 1e3;
    });
}

}  // namespace bench::memory
