// Detects a child forked from a process that used CUDA. CUDA does not work in such a child: objects
// of the parent make no driver call there, and take no lock, since a thread that does not exist in
// the child may hold it.
#pragma once

#include <atomic>

namespace vramkit {

namespace detail {
extern std::atomic<int> forks;  // one for all libraries that read it
}

// Forks count from now on. Called before the first object on a device is made: a child forked
// earlier may use CUDA.
void watch_forks();

// How many forks after watch_forks() lie between the first process and this one.
inline int fork_count() { return detail::forks.load(std::memory_order_relaxed); }

// Remembers in which process an object was made.
class ForkGuard {
  public:
    ForkGuard() { watch_forks(); }
    bool forked() const { return made_ != fork_count(); }

  private:
    int made_ = fork_count();
};

}  // namespace vramkit
