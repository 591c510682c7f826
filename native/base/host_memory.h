// Host memory that runs out: one place where that is no reason to fail.
#pragma once

#include <new>

namespace vramkit {

// For work that may as well be left out, or done later. False: the host had no memory for it, and
// what it began must be as before.
template <class Work>
bool if_host_memory_allows(Work work) {
    try {
        work();
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

}  // namespace vramkit
