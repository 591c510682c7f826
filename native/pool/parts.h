// The parts of a pool, in the order in which memory flows: a request goes to the thread caches,
// then the stream caches, then the device memory below them. What is freed goes back the same way.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "pool/config.h"
#include "pool/device_context.h"
#include "pool/memory/device_memory.h"
#include "pool/memory/direct_blocks.h"
#include "pool/streams/held_blocks.h"
#include "pool/streams/streams.h"
#include "pool/threads/thread_caches.h"

namespace vramkit::pool {

// Each part has its own state and documents which lock guards it; mostly the pool's.
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
    Stats counters;  // those that only slow paths write
    DeviceMemory memory;
    Streams streams;
    HeldBlocks held;
    DirectBlocks direct;
    ThreadCaches threads;

    // Moves every free block whose work is done from the caches of all streams to idle memory.
    // Never waits. Blocks in thread caches must be drained first. The stream that asks for memory
    // keeps its free ranges: all of them serve it, and together they give a better fit.
    void collect(const StreamCache* asks = nullptr);
    // Waits for all that streams hold now, without the pool's lock. False: there was nothing.
    bool wait(std::unique_lock<BriefMutex>& pool);
    // Makes numbers of streams that nothing refers to available again, if there are many.
    void reuse_numbers();
};

}  // namespace vramkit::pool
