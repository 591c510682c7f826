// Bytes of the card that pass from one program to another.
#pragma once

#include <cstdint>

namespace vramkit::swap {

// An engine takes credits before it takes memory of the card, and gives them when the memory is
// free again: after each chunk, so that another program can take it while the next one is copied.
// Called with the engine's lock held: an implementation must not call that engine, nor wait for
// someone who does. Programs in threads or processes of their own exchange credits by a counter.
class Credits {
  public:
    // False: there are not so many now.
    virtual bool take(std::uint64_t bytes) = 0;
    virtual void give(std::uint64_t bytes) = 0;

  protected:
    ~Credits() = default;
};

}  // namespace vramkit::swap
