// Owners of driver objects and of host memory: made in the constructor, given back in the
// destructor.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "gpu.h"

namespace bench {

class Stream {
  public:
    explicit Stream(Gpu& gpu, int priority = 0) : gpu_(&gpu) {
        GPU_CALL(gpu, cuStreamCreateWithPriority, &handle_, CU_STREAM_NON_BLOCKING, priority);
    }
    Stream(Stream&& other) noexcept
        : gpu_(other.gpu_), handle_(std::exchange(other.handle_, nullptr)) {}
    Stream& operator=(Stream&&) = delete;
    ~Stream() {
        if (handle_ != nullptr) {
            gpu_->note(gpu_->call().cuStreamDestroy_v2(handle_), "cuStreamDestroy_v2");
        }
    }
    operator CUstream() const { return handle_; }
    void synchronize() const { GPU_CALL(*gpu_, cuStreamSynchronize, handle_); }

  private:
    Gpu* gpu_;
    CUstream handle_ = nullptr;
};

class Event {
  public:
    explicit Event(Gpu& gpu, unsigned flags = CU_EVENT_DEFAULT) : gpu_(&gpu) {
        GPU_CALL(gpu, cuEventCreate, &handle_, flags);
    }
    Event(Event&& other) noexcept
        : gpu_(other.gpu_), handle_(std::exchange(other.handle_, nullptr)) {}
    Event& operator=(Event&&) = delete;
    ~Event() {
        if (handle_ != nullptr) {
            gpu_->note(gpu_->call().cuEventDestroy_v2(handle_), "cuEventDestroy_v2");
        }
    }
    operator CUevent() const { return handle_; }
    void record(CUstream stream) const { GPU_CALL(*gpu_, cuEventRecord, handle_, stream); }
    void synchronize() const { GPU_CALL(*gpu_, cuEventSynchronize, handle_); }
    double microseconds_since(const Event& start) const {
        float milliseconds = 0;
        GPU_CALL(*gpu_, cuEventElapsedTime, &milliseconds, start, handle_);
        return milliseconds * 1e3;
    }

  private:
    Gpu* gpu_;
    CUevent handle_ = nullptr;
};

class DeviceMemory {
  public:
    DeviceMemory(Gpu& gpu, std::size_t bytes) : gpu_(&gpu) {
        GPU_CALL(gpu, cuMemAlloc_v2, &address_, bytes);
    }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    ~DeviceMemory() { gpu_->note(gpu_->call().cuMemFree_v2(address_), "cuMemFree_v2"); }
    operator CUdeviceptr() const { return address_; }

  private:
    Gpu* gpu_;
    CUdeviceptr address_ = 0;
};

// Ordinary host memory in 4 KiB pages, every page touched.
class HostPages {
  public:
    explicit HostPages(std::size_t bytes);
    HostPages(const HostPages&) = delete;
    HostPages& operator=(const HostPages&) = delete;
    ~HostPages();
    void* data() const { return data_; }

  private:
    void* data_;
    std::size_t bytes_;
};

inline HostPages::HostPages(std::size_t bytes)
    : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
      bytes_(bytes) {
    if (data_ == MAP_FAILED) {
        throw Failure("no " + std::to_string(bytes) +
                      " bytes of host memory: " + std::strerror(errno));
    }
    // Kernels without huge pages refuse this advice, and then the pages are small anyhow.
    madvise(data_, bytes, MADV_NOHUGEPAGE);
    std::memset(data_, 1, bytes);
}

inline HostPages::~HostPages() { munmap(data_, bytes_); }

}  // namespace bench
