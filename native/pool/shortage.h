// Who holds memory of the pool and can do without it: asked when the pool is short, before a
// request waits on the host or fails.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace vramkit::pool {

// 1. A callback is told how many bytes are lacking, frees blocks to the pool, and returns how many
//    bytes that were; 0: it has none to give. One that runs out of host memory counts as such.
// 2. It runs on the thread that asks for memory, with no lock of the pool held: several threads may
//    be in it at once. A malloc inside it asks nobody, so that it never calls itself.
// 3. After remove() it is not called any more, and no call is under way, but for the one that
//    remove() was called from.
class Shortage {
  public:
    using Callback = std::function<std::uint64_t(std::uint64_t bytes)>;

    // The number by which it is removed.
    std::uint64_t add(Callback callback);
    // Unknown numbers are ignored.
    void remove(std::uint64_t number);
    // One callback after the other, in the order in which they were added, until so many bytes are
    // freed. Returns the bytes.
    std::uint64_t ask(std::uint64_t bytes);

  private:
    struct Entry {
        std::uint64_t number = 0;
        Callback callback;
        int calls = 0;  // under way
        bool removed = false;
    };

    class Running;

    // That the calling thread is in; null: none. Of all pools: a callback that is short of memory
    // of another pool must not take that pool's callbacks by surprise either.
    static thread_local const Entry* running_;

    std::mutex lock_;
    std::condition_variable ended_;  // a call
    std::vector<std::shared_ptr<Entry>> entries_;
    std::uint64_t next_ = 1;
};

}  // namespace vramkit::pool
