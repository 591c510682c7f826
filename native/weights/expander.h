// What brings a chunk of a group from staging memory on the card to the group's place.
#pragma once

#include <cstdint>
#include <string>

#include "base/failure.h"
#include "driver/driver.h"

namespace vramkit::weights {

// Weights that are copied at once.
struct Chunk {
    std::uint64_t first_byte = 0, bytes = 0;  // in the group's place
    std::uint64_t offset = 0, stored = 0;     // in host memory: what is copied
    // It is copied to staging memory and expanded from there. Else it is stored as it is.
    bool staged = false;
    std::uint64_t exceptions = 0;  // of a packed chunk (packing.h)
};

// A chunk whose copy to staging memory has been issued.
struct StagedChunk {
    std::string group;  // its name
    Chunk chunk;
    CUdeviceptr staging = 0;      // the bytes that were stored for it
    CUdeviceptr destination = 0;  // the chunk's part of the group's place
    CUstream stream = nullptr;
};

// 1. expand() issues all its work to the stream, which waits for the copy to staging memory
//    already, and behind which the bytes there are overwritten. It may wait on the host for that
//    work.
// 2. It writes the chunk's bytes at the destination, and none beyond them.
// 3. Calls come one at a time, with the lock of the streamer, in its context: it must not call the
//    streamer.
class Expander {
  public:
    virtual ~Expander() = default;
    virtual bool expand(const StagedChunk& staged, Failure& why) = 0;
    // A copy of the group failed: some of its chunks were not expanded, and the next attempt begins
    // with the first one again.
    virtual void give_up(const std::string& group, const Failure& why) {
        static_cast<void>(group);
        static_cast<void>(why);
    }
};

}  // namespace vramkit::weights
