// The pool of vramkit from C++17: vramkit.h with objects that clean up and errors that are thrown.
//
//     vramkit::pool pool = vramkit::pool::instance();
//     vramkit::buffer bytes(pool, 4096, stream);
//     vramkit::device_vector<float> weights(pool, 1024, stream);
//     kernel<<<1, 1024, 0, stream>>>(weights.data(), weights.size());
//     // both are freed here, at this point of the stream
//
// Header only; link to libvramkit.so. Any number of threads may use a pool; a buffer may be used by
// one thread at a time.
#ifndef VRAMKIT_HPP
#define VRAMKIT_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "vramkit.h"

namespace vramkit {
// Keeps these names apart from the library's own at link time.
inline namespace v1 {

class error : public std::runtime_error {
  public:
    error(vramkit_status status, const std::string& text)
        : std::runtime_error(text), status_(status) {}
    vramkit_status status() const noexcept { return status_; }

  private:
    vramkit_status status_;
};

class out_of_memory : public error {
  public:
    using error::error;
};

// Throws the last error of this thread.
[[noreturn]] inline void throw_last_error() {
    const vramkit_status status = vramkit_last_status();
    if (status == VRAMKIT_OUT_OF_MEMORY) throw out_of_memory(status, vramkit_last_error());
    throw error(status, vramkit_last_error());
}

inline void check(vramkit_status status) {
    if (status != VRAMKIT_OK) throw_last_error();
}

// The settings with their defaults, to be changed by name.
struct pool_options : vramkit_pool_options {
    pool_options() noexcept { vramkit_pool_options_init(this); }
};

// Owns a pool, or refers to the process-wide one. Movable. Must outlive its blocks: a pool that is
// destroyed while blocks are in use stays alive until the process ends, so that they stay valid.
class pool {
  public:
    explicit pool(const pool_options& options = {}) : handle_(vramkit_pool_create(&options)) {
        if (handle_ == nullptr) throw_last_error();
        owned_ = true;
    }
    static pool instance(int device = 0) { return pool(vramkit_pool_instance(device)); }
    ~pool() {
        if (owned_) vramkit_pool_destroy(handle_);
    }
    pool(pool&& other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)),
          owned_(std::exchange(other.owned_, false)) {}
    pool& operator=(pool&& other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(owned_, other.owned_);
        return *this;
    }

    vramkit_pool* handle() const noexcept { return handle_; }

    void* malloc(std::size_t bytes, void* stream = nullptr) {
        void* const block = vramkit_malloc(handle_, bytes, stream);
        if (block == nullptr) throw_last_error();
        return block;
    }
    // Never waits for work of the card: null if no memory is available at once.
    void* try_malloc(std::size_t bytes, void* stream = nullptr) {
        void* const block = vramkit_try_malloc(handle_, bytes, stream);
        if (block == nullptr && vramkit_last_status() != VRAMKIT_OUT_OF_MEMORY) throw_last_error();
        return block;
    }
    // Frees at the current point of the stream of the allocation.
    void free(void* block) { check(vramkit_free(handle_, block)); }
    void free_on(void* block, void* stream) { check(vramkit_free_on(handle_, block, stream)); }
    // The block is used on this stream too: when freed, it is held until the work that the stream
    // has at that point is done.
    void also_used_on(void* block, void* stream) {
        check(vramkit_also_used_on(handle_, block, stream));
    }

    void preallocate(std::size_t bytes, std::size_t count) {
        check(vramkit_preallocate(handle_, bytes, count));
    }
    // Returns the bytes given back to the driver.
    std::uint64_t trim() {
        std::uint64_t released = 0;
        check(vramkit_trim(handle_, &released));
        return released;
    }
    std::uint64_t release_all() {
        std::uint64_t released = 0;
        check(vramkit_release_all(handle_, &released));
        return released;
    }
    // Joins all idle memory into one piece. Returns the bytes moved.
    std::uint64_t defragment() {
        std::uint64_t moved = 0;
        check(vramkit_defragment(handle_, &moved));
        return moved;
    }
    // One round of what the background thread does.
    void step() { check(vramkit_step(handle_)); }
    vramkit_stats stats() const {
        vramkit_stats now{};
        now.size = sizeof now;
        check(vramkit_pool_stats(handle_, &now));
        return now;
    }
    void reset_stats() { check(vramkit_reset_stats(handle_)); }
    void close() { check(vramkit_pool_close(handle_)); }

  private:
    explicit pool(vramkit_pool* shared) : handle_(shared) {
        if (handle_ == nullptr) throw_last_error();
    }

    vramkit_pool* handle_ = nullptr;
    bool owned_ = false;
};

// A block that frees itself, at the then current point of the stream it was allocated on. Movable;
// an empty buffer has no block.
class buffer {
  public:
    buffer() noexcept = default;
    buffer(pool& from, std::size_t bytes, void* stream = nullptr)
        : pool_(from.handle()), data_(from.malloc(bytes, stream)), size_(bytes), stream_(stream) {}
    ~buffer() { drop(); }
    buffer(buffer&& other) noexcept { swap(other); }
    buffer& operator=(buffer&& other) noexcept {
        if (this != &other) {
            drop();
            swap(other);
        }
        return *this;
    }

    void* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }  // bytes
    void* stream() const noexcept { return stream_; }
    bool empty() const noexcept { return data_ == nullptr; }

    // Frees early.
    void reset() {
        check(vramkit_free(pool_, data_));
        forget();
    }
    // Frees on another stream: all use must be ordered before its current point.
    void reset_on(void* stream) {
        check(vramkit_free_on(pool_, data_, stream));
        forget();
    }
    // The caller owns the block from now on, and frees it by pool::free.
    void* release() noexcept {
        void* const block = data_;
        forget();
        return block;
    }
    void swap(buffer& other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(stream_, other.stream_);
    }

  private:
    // A destructor cannot report an error.
    void drop() noexcept {
        vramkit_free(pool_, data_);
        forget();
    }
    void forget() noexcept {
        data_ = nullptr;
        size_ = 0;
    }

    vramkit_pool* pool_ = nullptr;
    void* data_ = nullptr;
    std::size_t size_ = 0;
    void* stream_ = nullptr;
};

namespace detail {

template <class T>
std::size_t bytes_of(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
        throw error(VRAMKIT_BAD_VALUE, "an array of " + std::to_string(count) + " elements of " +
                                           std::to_string(sizeof(T)) + " bytes is too large");
    }
    return count * sizeof(T);
}

}  // namespace detail

// An array of T on the device: its elements have no value until a copy or a kernel writes them. The
// host sees the address and the count, never an element. Movable.
template <class T>
class device_vector {
    static_assert(std::is_trivially_copyable_v<T>,
                  "device memory holds what can be copied as bytes");

  public:
    using value_type = T;

    device_vector() noexcept = default;
    device_vector(pool& from, std::size_t count, void* stream = nullptr) {
        if (count > 0) memory_ = buffer(from, detail::bytes_of<T>(count), stream);
    }

    T* data() const noexcept { return static_cast<T*>(memory_.data()); }
    std::size_t size() const noexcept { return memory_.size() / sizeof(T); }
    std::size_t size_bytes() const noexcept { return memory_.size(); }
    bool empty() const noexcept { return memory_.empty(); }
    void* stream() const noexcept { return memory_.stream(); }
    void reset() { memory_.reset(); }
    void reset_on(void* stream) { memory_.reset_on(stream); }

  private:
    buffer memory_;
};

// An allocator for the standard containers, on one pool and stream. Two are equal if their pools
// and streams are.
//
// Containers construct their elements on the host, which cannot write device memory. So elements
// are left uninitialised, and operations that would set them do not compile. What works is
// std::vector<T, stl_allocator<T>> v(count, allocator) with data(), size(), move and swap; what
// does not is a vector of copies, push_back, resize and the like. Access to an element on the host,
// such as v[0], compiles but is an error. Unless an interface needs a container, device_vector is
// the better choice.
template <class T>
class stl_allocator {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                  "device memory holds what can be copied as bytes");

  public:
    using value_type = T;
    // Blocks go with the container that they move to.
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    explicit stl_allocator(pool& from, void* stream = nullptr) noexcept
        : pool_(from.handle()), stream_(stream) {}
    template <class U>
    stl_allocator(const stl_allocator<U>& other) noexcept
        : pool_(other.pool_), stream_(other.stream_) {}

    T* allocate(std::size_t count) {
        void* const block = vramkit_malloc(pool_, detail::bytes_of<T>(count), stream_);
        if (block == nullptr) throw_last_error();
        return static_cast<T*>(block);
    }
    void deallocate(T* block, std::size_t) noexcept { vramkit_free(pool_, block); }

    template <class U, class... Values>
    void construct(U*, Values&&...) noexcept {
        static_assert(sizeof...(Values) == 0,
                      "the host cannot write device memory: fill it by a copy or a kernel");
    }
    template <class U>
    void destroy(U*) noexcept {}

    template <class U>
    bool operator==(const stl_allocator<U>& other) const noexcept {
        return pool_ == other.pool_ && stream_ == other.stream_;
    }
    template <class U>
    bool operator!=(const stl_allocator<U>& other) const noexcept {
        return !(*this == other);
    }

  private:
    template <class U>
    friend class stl_allocator;

    vramkit_pool* pool_;
    void* stream_;
};

}  // namespace v1
}  // namespace vramkit

#endif
