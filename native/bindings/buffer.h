// Host memory between Python's buffer protocol and plain addresses.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace vramkit {

// The memory of any buffer object, held (not resized, not freed) while this lives.
class Buffer {
  public:
    // Raises TypeError or BufferError, as Python does, for what has no contiguous buffer or, where
    // `writable` asks for it, none that can be written.
    Buffer(nanobind::handle object, bool writable);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    uint64_t address() const { return reinterpret_cast<uintptr_t>(view_.buf); }
    size_t size() const { return static_cast<size_t>(view_.len); }
    void release();

  private:
    Py_buffer view_{};
};

// A range of host memory that Python can look into through views; counts them.
class HostRange {
  public:
    HostRange(uint64_t address, size_t size, bool writable)
        : address_(address), size_(size), writable_(writable) {}

    void* address() const { return reinterpret_cast<void*>(address_); }
    Py_ssize_t size() const { return static_cast<Py_ssize_t>(size_); }
    bool writable() const { return writable_; }
    int views() const { return views_; }
    void view_taken() { ++views_; }
    void view_released() { --views_; }

  private:
    uint64_t address_;
    size_t size_;
    bool writable_;
    int views_ = 0;
};

}  // namespace vramkit
