// Work that involves several parts.
#include "pool/parts.h"

#include <vector>

namespace vramkit::pool {

bool Parts::wait(std::unique_lock<BriefMutex>& pool) {
    bool waited = streams.wait(pool);
    // What was held for others is in the cache of its stream now, behind a fence of that.
    if (!card.forgotten && held.release()) waited |= streams.wait(pool);
    return waited;
}

void Parts::collect(const StreamCache* asks) {
    held.release();
    streams.collect_all(asks);
    threads.drop_ended();
    memory.end_untouched_slabs();
}

// A number is in use while a block of the stream is with a user or held, a thread has a cache of
// it, or a block is noted as used on it. This visits all blocks, so it runs only when as many
// streams are new as were known the last time.
void Parts::reuse_numbers() {
    if (!streams.should_reuse_numbers()) return;
    std::vector<bool> known_streams(streams.streams().size()),
        known_captures(streams.captures().size());
    const auto note = [&](std::uint32_t number) {
        if (is_capture(number)) {
            known_captures[number & ~kCaptureBit] = true;
        } else {
            known_streams[number] = true;
        }
    };
    const auto note_blocks = [&](const Slab& slab) {
        for (std::uint32_t i = 0; i < slab.count; ++i) {
            if (slab.record(i).with_user()) note(slab.record(i).stream());
        }
    };
    // A block that is being handed out belongs to a stream with a thread cache here.
    for (const auto& cache : threads.all()) note(cache->number);
    for (const auto& [address, slab] : memory.slabs().all()) note_blocks(*slab);
    memory.ranges().each(note_blocks);
    held.each_number(note);
    direct.each_number(note);
    streams.reuse_numbers([&](std::uint32_t number) {
        return is_capture(number) ? known_captures[number & ~kCaptureBit] : known_streams[number];
    });
}

}  // namespace vramkit::pool
