// The explanation of an out-of-memory failure.
#include "pool/report/explain.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "pool/report/free_memory.h"

namespace vramkit::pool {
namespace {

constexpr std::uint64_t kEnded = 0;  // no stream has this id

// The stream on which most of what is in use was allocated, and so many bytes. Wherever a block
// will be freed: what caches count is off by the blocks that other streams free.
std::pair<std::uint64_t, std::uint64_t> most_in_use(const Parts& parts) {
    std::map<std::uint32_t, std::uint64_t> by_number;
    const auto add = [&](const Slab& slab, std::uint32_t number) {
        const Block& block = slab.record(number);
        if (block.with_user()) by_number[block.stream()] += slab.asked_for(block);
    };
    {
        std::vector<std::unique_lock<BriefMutex>> guards;  // no range is cut or joined meanwhile
        parts.streams.each_cache([&](StreamCache& cache) { guards.emplace_back(cache.lock); });
        parts.memory.ranges().each([&](const Slab& range) { add(range, 0); });
    }
    for (const auto& [address, slab] : parts.memory.slabs().all()) {
        for (std::uint32_t i = 0; i < slab->count; ++i) add(*slab, i);
    }
    parts.direct.each_in_use(
        [&](std::uint32_t number, std::uint64_t bytes) { by_number[number] += bytes; });
    std::map<std::uint64_t, std::uint64_t> by_id;  // a capture has the id of its stream
    for (const auto& [number, bytes] : by_number) {
        const auto& cache = parts.streams[number].cache;
        by_id[cache == nullptr || cache->ended ? kEnded : cache->stream.id] += bytes;
    }
    std::pair<std::uint64_t, std::uint64_t> most{};
    for (const auto& each : by_id) {
        if (each.second > most.second) most = each;
    }
    return most;
}

}  // namespace

std::string explain_shortage(const Parts& parts, std::uint64_t bytes, const Failure& cause,
                             std::uint64_t largest) {
    const FreeMemory free = free_memory(parts, largest);
    const std::uint64_t mapped = parts.memory.mapped(), limit = parts.config.limit;
    size_t card_free = 0, card = parts.card.bytes;
    parts.card.call.cuMemGetInfo_v2(&card_free, &card);
    const auto mib = [](std::uint64_t value) { return std::to_string(value >> 20) + " MiB"; };
    const auto live = static_cast<std::uint64_t>(parts.threads.usage.live());
    std::string text = "out of device memory: asked for " + std::to_string(bytes) + " bytes (" +
                       mib(bytes) + "). The pool holds " + mib(mapped) + ", of which " + mib(live) +
                       " are in use, " + mib(free.cached) + " in caches, " +
                       mib(free.stream_cached) + " waiting for streams and " + mib(free.idle()) +
                       " idle; the largest free range has " + mib(free.largest) +
                       ". The card has " + mib(card_free) + " of " + mib(card) + " free.";
    if (bytes > parts.card.bytes) return text + " No block can be larger than the card.";
    if (bytes > parts.memory.most_bytes()) {
        return text + " No block can be larger than the limit of " + mib(limit) +
               ": raise the limit.";
    }
    const auto name = [](std::uint64_t stream) {
        if (stream == kEnded) return std::string("streams that have ended");
        return stream == kLegacyStreamId ? std::string("the legacy default stream")
                                         : "stream " + std::to_string(stream);
    };
    if (const auto [stream, bytes_in_use] = most_in_use(parts); bytes_in_use >= kPage) {
        text += " Most of what is in use is of " + name(stream) + ": " + mib(bytes_in_use) + ".";
    }
    // Which stream holds most of the memory that waits.
    std::uint64_t most = 0, holder = 0, arena = 0, unfenced = parts.held.bytes_awaiting_card();
    std::uint64_t busy = parts.held.bytes();
    parts.streams.each_cache([&](StreamCache& cache) {
        const std::lock_guard guard(cache.lock);
        if (cache.stream.capture != 0) {
            arena += cache.bytes();
        } else if (!cache.can_record_fence() && cache.has_unfenced()) {
            unfenced += cache.bytes();
        }
        if (cache.has_work()) busy += cache.bytes();
        if (cache.bytes() > most) {
            most = cache.bytes();
            holder = cache.stream.id;
        }
    });
    if (most > 0) text += " Most of what waits is of " + name(holder) + ": " + mib(most) + ".";
    if (unfenced > 0) {
        text += " Up to " + mib(unfenced) +
                " were freed on raw streams that may be gone: release_all waits for the card.";
    }
    if (arena > 0) text += " Captured graphs keep " + mib(arena) + ".";
    if (limit > 0) text += " The limit is " + mib(limit) + ".";
    if (cause.call.empty() && limit > 0) {
        text += " Raise the limit, or free blocks.";
    } else if (busy >= kPage) {
        text += " Work under way holds what waits: synchronise, or free earlier.";
    } else if (free.cached + free.stream_cached + free.idle() + card_free >= bytes) {
        text +=
            " As much is free, but not in one place, and it moves only in whole pieces, of "
            "which blocks in use keep parts.";
    } else if (live + (live >> 3) >= card) {
        text += " What is in use does not fit the card: free blocks.";
    } else if (card_free + mapped < card / 2) {
        text += " Other programs hold most of the card.";
    }
    return text;
}

}  // namespace vramkit::pool
