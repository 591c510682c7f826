// The parts of a pool, in the order in which memory flows: a request asks the threads' caches, then
// the streams', then the device memory below them, and what is freed goes back the same way.
#pragma once

#include <memory>
#include <utility>

#include "pool/config.h"
#include "pool/device_context.h"
#include "pool/memory/device_memory.h"
#include "pool/memory/direct_blocks.h"
#include "pool/streams/held_blocks.h"
#include "pool/streams/streams.h"
#include "pool/threads/thread_caches.h"

namespace vramkit::pool {

// Each has its own state and says what protects it; mostly the pool's lock.
struct Parts {
    Parts(std::uint64_t pool, std::shared_ptr<Driver> driver, int device, CUcontext context,
          std::uint64_t card_bytes)
        : card(std::move(driver), device, context, card_bytes),
          memory(card, counters),
          streams(card, memory, counters),
          held(card, memory, streams),
          direct(card, memory),
          threads(pool, card, streams) {}

    DeviceContext card;
    Config config;   // in force
    Stats counters;  // those that only slow paths touch
    DeviceMemory memory;
    Streams streams;
    HeldBlocks held;
    DirectBlocks direct;
    ThreadCaches threads;

    // Everything that is free and done with becomes idle, from the caches of all threads and
    // streams. Waits for nobody.
    void collect();
    // Numbers of streams that nobody knows any more are used again, where there are many.
    void reuse_numbers();
};

}  // namespace vramkit::pool
