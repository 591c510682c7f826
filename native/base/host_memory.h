// Work that may be skipped when host memory runs out.
#pragma once

#include <new>

namespace vramkit {

// Runs work that may be left out or done later. False: the host is out of memory; the work must
// have left everything unchanged.
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
