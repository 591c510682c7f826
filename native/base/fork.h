// Whether this process was forked off one that used CUDA. CUDA does not work in such a child: what
// the parent made there makes no driver call in it and takes no lock, which a thread that is not
// there may hold.
#pragma once

#include <atomic>

namespace vramkit {

namespace detail {
extern std::atomic<int> forks;  // one for all libraries that read it
}

// From now on forks count: whoever first makes something on a device calls it. A process that was
// forked off before may use CUDA.
void watch_forks();

// How often this process has been forked off one that watched.
inline int fork_count() { return detail::forks.load(std::memory_order_relaxed); }

// In which process an object was made.
class ForkGuard {
  public:
    ForkGuard() { watch_forks(); }
    bool forked() const { return made_ != fork_count(); }

  private:
    int made_ = fork_count();
};

}  // namespace vramkit
